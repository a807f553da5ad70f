"use strict";
const said = document.getElementById("said");
// Where no public address was recorded, the page's own is the index's.
for (const place of document.querySelectorAll("[data-here]")) {
  place.textContent = place.textContent.replaceAll("INDEX", new URL(".", location.href).href.replace(/\/$/, ""));
}
for (const button of document.querySelectorAll("button[data-copies]")) {
  const text = document.getElementById(button.dataset.copies);
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      said.textContent = button.textContent = "Copied";
    } catch {
      // No clipboard without https, or it was refused: mark the text, so that one key copies it.
      getSelection().selectAllChildren(text);
      said.textContent = button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 4000);
  });
}
