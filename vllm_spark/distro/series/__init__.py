"""The patch series: reading, checking, applying, writing back, and proving that each guard guards."""
