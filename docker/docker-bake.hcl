# docker buildx bake --file docker/docker-bake.hcl   (run in the checkout; `vllm-spark image plan` prints the values)

variable "BUNDLE" {
  default = "dist/vllm-spark-0.33.0.1-cp312-aarch64"
}

variable "TAG" {
  default = "vllm-spark:0.33.0.1"
}

# Empty means the Dockerfile's own, pinned by digest.
variable "BASE" {
  default = ""
}

# Every file and layer gets this time, so that the same inputs give the same digests.
variable "SOURCE_DATE_EPOCH" {
  default = "315532800"
}

target "default" {
  context    = "docker"
  contexts   = { bundle = BUNDLE }
  platforms  = ["linux/arm64"]
  tags       = [TAG]
  args       = BASE == "" ? { SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH } : { SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH, BASE = BASE }
  attest     = ["type=provenance,mode=max", "type=sbom"]
  output     = ["type=oci,dest=dist/image.tar,rewrite-timestamp=true"]
}
