// Stands in for cuBLAS's header: vLLM's csrc/torch_utils.h takes this one name from it, and nothing here links.
#pragma once

typedef struct cublasContext* cublasHandle_t;
