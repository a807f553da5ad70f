// out = x · Wᵀ for few rows of x and 4-bit W, alone or for the experts of a mixture.
//
// A block of eight warps covers some tile rows of W. Its warps split the columns (the reduction) among them, so that
// one launch does everything: no atomics, no second pass, the same order of additions every time. Each warp keeps
// kDepth tiles in flight in registers, which is what saturates the memory; the tensor cores do the arithmetic
// because they add in float32 for a sixteenth of the instructions.
#pragma once

#include "w4_tile.cuh"

namespace vllm_spark::w4 {

enum class Finish : int {
  kStore,      // out[row] = y (+ bias)
  kSiluMul,    // tile 0 is the gate and tile 1 the up projection: out[row] = silu(gate) up
  kGeluMul,    // the same with the tanh form of gelu
  kRelu2,      // out[row] = max(y, 0)^2
  kWeighted,   // out[row] = y times the pair's routing weight
};

// Which rows of x a block works on.
enum class Rows : int {
  kDense,    // rows blockIdx.x * 8 kM ...
  kPair,     // one (token, slot) pair, with its own expert; no alignment is needed
  kToken,    // one token: the sum over its slots of weighted experts
  kAligned,  // a block of vLLM's moe_align_block_size: pairs of one expert, padded
};

struct Problem {
  const void* x;
  const uint4* weight;
  const void* scales;
  const float* alpha;  // one factor per expert, or null
  const void* bias;    // as wide as a row of `out`, or null
  void* out;
  int64_t x_stride;          // elements
  int64_t out_stride;
  int64_t expert_tiles;      // tiles of W per expert
  int64_t expert_words;      // scale words of one lane group row per expert
  int rows;                  // of x (dense), or pairs
  int n;                     // outputs of one row
  int k;
  int tiles_n;
  int tiles_k;
  int scale_columns;         // scale words along k
  int tile1;                 // from tile 0 to tile 1 of a warp
  int split;                 // warps along k: 1, 2, 4 or 8
  Finish finish;
  Rows mode;
  // Mixtures only.
  int top_k;
  int x_div;                 // pair -> row of x: top_k for the first layer, 1 for the second
  int block;                 // rows of an aligned block
  const int32_t* experts;
  const int32_t* sorted;
  const int32_t* padded;
  const float* pair_weight;
};

// Launched early (programmatic dependent launch), a kernel may read its weights before this and nothing else.
__device__ __forceinline__ void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }

// The tiles that one warp reads, kDepth of them on their way. Pointers stand at the tile in slot 0.
template <Scales S, int kN, int kDepth>
struct Stream {
  static_assert(kDepth % 2 == 0);  // a pair of tiles may share its scales
  uint4 q[kDepth][kN];
  ScaleWord<S> s[kDepth][kN];
  const uint4* from[kN];
  const ScaleWord<S>* scale_from[kN];

  __device__ __forceinline__ void start(const Problem& p, int64_t expert, const int (&tile)[kN], int begin) {
    const int lane = threadIdx.x % 32;
    const int mine = S == Scales::kE4m3 ? (lane / 4) * 2 + (lane % 4) / 2 : lane / 4;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      from[n] = p.weight + (expert * p.expert_tiles + int64_t{tile[n]} * p.tiles_k + begin) * 32 + lane;
      const int first = S == Scales::kGroup128 ? begin / 2 : begin;
      scale_from[n] = static_cast<const ScaleWord<S>*>(p.scales) +
                      (expert * p.expert_words + int64_t{tile[n]} * p.scale_columns + first) * kScaleWords<S> + mine;
    }
  }

  // Slot `slot` := the tile `ahead` of where the pointers stand.
  __device__ __forceinline__ void load(int n, int slot, int ahead) {
    q[slot][n] = load_once(from[n] + ahead * 32);
    s[slot][n] = load_once(scale_from[n] + (S == Scales::kGroup128 ? ahead / 2 : ahead) * kScaleWords<S>);
  }

  __device__ __forceinline__ void prefetch(int tiles) {
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (u < tiles) {
          load(n, u, u);
        }
      }
    }
  }

  __device__ __forceinline__ void advance(int tiles) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      from[n] += tiles * 32;
      scale_from[n] += (S == Scales::kGroup128 ? tiles / 2 : tiles) * kScaleWords<S>;
    }
  }
};

// The rows of x that one lane reads. A row that does not exist reads some other one: columns of a matrix product do
// not mix, and that one is not stored.
template <typename T, int kM>
struct Activations {
  const T* row[kM];

  __device__ __forceinline__ void load(uint4 (&x)[2], int m, int ahead) const {
    x[0] = __ldg(reinterpret_cast<const uint4*>(row[m] + ahead * kTileColumns));
    x[1] = __ldg(reinterpret_cast<const uint4*>(row[m] + ahead * kTileColumns + 32));
  }

  // The last tile, of which only `columns` exist: the rest must be zero, or a NaN there would meet a zero weight.
  __device__ __forceinline__ void load_ragged(uint4 (&x)[2], int m, int columns) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      x[j] = make_uint4(0, 0, 0, 0);
      if (static_cast<int>(threadIdx.x % 4) * 8 + 32 * j < columns) {
        x[j] = __ldg(reinterpret_cast<const uint4*>(row[m] + 32 * j));
      }
    }
  }

  __device__ __forceinline__ void advance(int tiles) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      row[m] += tiles * kTileColumns;
    }
  }
};

// sum += the tile in `slot` times activations. kTogether tiles share one reading of the activations.
template <typename T, Scales S, int kN, int kM, int kDepth, typename Load>
__device__ __forceinline__ void multiply_slot(float (&sum)[kN][kM][4], const char* table,
                                              const Stream<S, kN, kDepth>& w, int slot, Load&& activations) {
  constexpr int kTogether = kM <= 2 ? 1 : kN;
#pragma unroll
  for (int first = 0; first < kN; first += kTogether) {
    uint32_t a[kTogether][4][4];
    float2 scale[kTogether][2];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      decode_tile<T, S>(a[n], table, w.q[slot][first + n], w.s[slot][first + n]);
      scale[n][0] = row_scales<T, S>(w.s[slot][first + n], 0);
      scale[n][1] = row_scales<T, S>(w.s[slot][first + n], 1);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      uint4 x[2];
      activations(x, m);
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        multiply_tile<T, S>(sum[first + n][m], a[n], scale[n], x);
      }
    }
  }
}

// One warp's share of the columns of one expert: `tiles` whole tiles, the first of which are on their way already.
template <typename T, Scales S, int kN, int kM, int kDepth>
__device__ __forceinline__ void accumulate(float (&sum)[kN][kM][4], const char* table, Stream<S, kN, kDepth>& w,
                                           Activations<T, kM>& rows, int tiles) {
  constexpr int kAhead = kM == 1 ? 2 : kM == 2 ? 1 : 0;  // tiles by which activations are fetched before their use
  uint4 next[kAhead > 0 ? kAhead : 1][kM][2];
  const auto fetch = [&](int ahead) {
    if constexpr (kAhead > 0) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        rows.load(next[ahead % kAhead][m], m, ahead);
      }
    }
  };
  const auto multiply = [&](int u) {
    multiply_slot<T, S, kN, kM, kDepth>(sum, table, w, u, [&](uint4(&x)[2], int m) {
      if constexpr (kAhead > 0) {
        x[0] = next[u % kAhead][m][0];
        x[1] = next[u % kAhead][m][1];
      } else {
        rows.load(x, m, u);
      }
    });
  };
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (u < tiles) {
      fetch(u);
    }
  }
  int left = tiles;
  for (; left >= kDepth; left -= kDepth) {
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
      multiply(u);
      if (u + kAhead < left) {
        fetch(u + kAhead);
      }
      if (u + kDepth < left) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          w.load(n, u, u + kDepth);
        }
      }
    }
    w.advance(kDepth);
    rows.advance(kDepth);
  }
#pragma unroll
  for (int u = 0; u < kDepth - 1; ++u) {
    if (u < left) {
      multiply(u);
      if (u + kAhead < left) {
        fetch(u + kAhead);
      }
    }
  }
  w.advance(left);
  rows.advance(left);
}

// The last tile, where only `columns` of its 64 exist.
template <typename T, Scales S, int kN, int kM, int kDepth>
__device__ __forceinline__ void accumulate_ragged(float (&sum)[kN][kM][4], const char* table, Stream<S, kN, kDepth>& w,
                                                  const Activations<T, kM>& rows, int columns) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    w.load(n, 0, 0);
  }
  multiply_slot<T, S, kN, kM, kDepth>(sum, table, w, 0,
                                      [&](uint4(&x)[2], int m) { rows.load_ragged(x, m, columns); });
}

__device__ __forceinline__ bool gated(Finish finish) {
  return finish == Finish::kSiluMul || finish == Finish::kGeluMul;
}

__device__ __forceinline__ float gate_times_up(Finish finish, float gate, float up) {
  // gelu's tanh form is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
  const float inner = finish == Finish::kSiluMul ? gate : 1.5957691216f * (gate + 0.044715f * gate * gate * gate);
  return gate / (1.0f + __expf(-inner)) * up;
}

// What one warp does: which tile rows, which columns of them, and which slots of a token.
struct Share {
  int tile;
  int begin, end;
  int slot, slots, slot_step;
};

__device__ __forceinline__ Share share_of(const Problem& p, int tiles_per_warp, int granule) {
  const int warp = threadIdx.x / 32;
  const int part = warp % p.split;
  const bool pair = gated(p.finish);
  Share mine;
  mine.tile = (blockIdx.y * (kWarps / p.split) + warp / p.split) * (pair ? 1 : tiles_per_warp);
  mine.slots = p.mode == Rows::kToken ? p.top_k : 1;
  mine.slot_step = 1;  // warps of a group that take different slots; the rest of the split is along the columns
  while (mine.slot_step * 2 <= min(p.split, mine.slots)) {
    mine.slot_step *= 2;
  }
  mine.slot = part % mine.slot_step;
  const int splits = p.split / mine.slot_step;
  const int chunk = (p.tiles_k + splits * granule - 1) / (splits * granule) * granule;
  mine.begin = min(part / mine.slot_step * chunk, p.tiles_k);
  mine.end = mine.tile < (pair ? p.tile1 : p.tiles_n) ? min(mine.begin + chunk, p.tiles_k) : mine.begin;
  return mine;
}

// Row of x that row `r` of the block reads; some existing row where it has none.
__device__ __forceinline__ int source_row(const Problem& p, int r, int rows, int slot) {
  const int block = blockIdx.x;
  switch (p.mode) {
    case Rows::kDense:
      return min(block * rows + r, p.rows - 1);
    case Rows::kAligned:
      return min(r < p.block ? p.sorted[block * p.block + r] : 0, p.rows - 1) / p.x_div;
    case Rows::kPair:
      return block / p.x_div;
    default:
      return block * p.top_k + slot;
  }
}

// Row of `out` that row `r` of the block writes, or -1.
__device__ __forceinline__ int64_t target_row(const Problem& p, int r, int rows) {
  if (p.mode == Rows::kDense) {
    const int row = blockIdx.x * rows + r;
    return row < p.rows ? row : -1;
  }
  if (p.mode == Rows::kAligned) {
    const int pair = r < p.block ? p.sorted[blockIdx.x * p.block + r] : p.rows;
    return pair < p.rows ? pair : -1;
  }
  return r == 0 ? static_cast<int>(blockIdx.x) : -1;
}

// The expert of this block (and slot), 0 for a plain linear layer, -1 where it lives on another rank.
__device__ __forceinline__ int64_t expert_of(const Problem& p, int slot) {
  switch (p.mode) {
    case Rows::kDense:
      return 0;
    case Rows::kToken:
      return p.experts[blockIdx.x * p.top_k + slot];
    default:
      return p.experts[blockIdx.x];
  }
}

// What multiplies the sum of one expert: its global scale, and the routing weight where slots are summed here.
__device__ __forceinline__ float factor_of(const Problem& p, int64_t expert, int slot) {
  if (expert < 0) {
    return 0.0f;
  }
  const float alpha = p.alpha == nullptr ? 1.0f : p.alpha[expert];
  return p.mode == Rows::kToken ? alpha * p.pair_weight[blockIdx.x * p.top_k + slot] : alpha;
}

template <int kN, int kM>
__device__ __forceinline__ void scale_sums(float (&sum)[kN][kM][4], float factor) {
#pragma unroll
  for (int i = 0; i < kN * kM * 4; ++i) {
    sum[i / 4 / kM][i / 4 % kM][i % 4] *= factor;
  }
}

// Where a partial sum lies: [warp][tile][row of x][row of W]; rows of W change places so that a warp's writes spread
// over the banks.
template <int kN, int kRows>
__device__ __forceinline__ int sum_at(int warp, int n, int r, int c) {
  return ((warp * kN + n) * kRows + r) * kTileRows + (c ^ ((r / 2 % 2) * 8));
}

template <int kN, int kM>
__device__ __forceinline__ void share_sums(float* sums, const float (&total)[kN][kM][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * m + (lane % 4) * 2 + i % 2;
        sums[sum_at<kN, 8 * kM>(threadIdx.x / 32, n, r, lane / 4 + (i / 2) * 8)] = total[n][m][i];
      }
    }
  }
}

// Adds what the warps of a group have found, in their order, and writes the block's outputs.
template <typename T, int kN, int kM>
__device__ __forceinline__ void store_block(const Problem& p, const float* sums) {
  constexpr int kRows = 8 * kM;
  const bool pair = gated(p.finish);
  const int outputs = pair ? 1 : kN;  // tiles per group
  const int groups = kWarps / p.split;
  const int wide = groups * outputs * kTileRows;
  for (int i = threadIdx.x; i < wide * kRows; i += kThreads) {
    const int r = i / wide;
    const int group = i % wide / (kTileRows * outputs);
    const int n = i % wide / kTileRows % outputs;
    const int c = i % kTileRows;
    const int at = (blockIdx.y * groups * outputs) * kTileRows + i % wide;
    const int64_t row = target_row(p, r, kRows);
    if (at >= p.n || row < 0) {
      continue;
    }
    const auto sum = [&](int which) {
      float y = 0.0f;
      for (int s = 0; s < p.split; ++s) {
        y += sums[sum_at<kN, kRows>(group * p.split + s, which, r, c)];
      }
      return y;
    };
    float y = sum(n);
    if (pair) {
      y = gate_times_up(p.finish, y, sum(kN - 1));
    } else if (p.finish == Finish::kRelu2) {
      y = fmaxf(y, 0.0f) * fmaxf(y, 0.0f);
    } else if (p.finish == Finish::kWeighted) {
      y *= p.pair_weight[row];
    }
    if (p.bias != nullptr) {
      y += static_cast<float>(static_cast<const T*>(p.bias)[at]);
    }
    static_cast<T*>(p.out)[row * p.out_stride + at] = static_cast<T>(y);
  }
}

template <typename T, Scales S, int kN, int kM, int kDepth, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    w4_kernel(const __grid_constant__ Problem p, const __grid_constant__ Codebook book) {
  extern __shared__ __align__(256) char table[];
  static_assert(kWarps * kN * 8 * kM * kTileRows * sizeof(float) <= kTableBytes);

  const Share mine = share_of(p, kN, S == Scales::kGroup128 ? 2 : 1);
  if (p.mode == Rows::kAligned || p.mode == Rows::kPair) {
    wait_for_inputs();
    const bool padding = p.mode == Rows::kAligned && static_cast<int>(blockIdx.x) * p.block >= *p.padded;
    if (padding || expert_of(p, 0) < 0) {
      return;  // the whole block agrees
    }
  }
  int tile[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    tile[n] = min(mine.tile + n * p.tile1, p.tiles_n - 1);  // a tile too many is computed and not stored
  }
  const int whole = p.k / kTileColumns;
  const bool ragged = mine.begin < mine.end && mine.end > whole;
  float total[kN][kM][4] = {};
  for (int slot = mine.slot; slot < mine.slots; slot += mine.slot_step) {
    if (p.mode == Rows::kToken && slot == mine.slot) {
      wait_for_inputs();
    }
    const int64_t expert = expert_of(p, slot);
    const int tiles = expert < 0 ? 0 : max(min(mine.end, whole) - mine.begin, 0);
    Stream<S, kN, kDepth> w;
    w.start(p, expert < 0 ? 0 : expert, tile, mine.begin);
    w.prefetch(tiles);
    if (slot == mine.slot) {
      fill_table(table, book);
      __syncthreads();
      wait_for_inputs();
    }
    Activations<T, kM> rows;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int row = source_row(p, 8 * m + (threadIdx.x % 32) / 4, 8 * kM, slot);
      rows.row[m] = static_cast<const T*>(p.x) + row * p.x_stride + mine.begin * kTileColumns + (threadIdx.x % 4) * 8;
    }
    const auto run = [&](float(&sum)[kN][kM][4]) {
      accumulate<T, S, kN, kM, kDepth>(sum, table, w, rows, tiles);
      if (ragged && expert >= 0) {
        accumulate_ragged<T, S, kN, kM, kDepth>(sum, table, w, rows, p.k - whole * kTileColumns);
      }
    };
    if constexpr (kM > 1) {
      run(total);
      scale_sums<kN, kM>(total, factor_of(p, expert, slot));
      break;  // only the token mode has several slots, and it has one row
    } else {
      float sum[kN][kM][4] = {};
      run(sum);
      scale_sums<kN, kM>(sum, factor_of(p, expert, slot));
#pragma unroll
      for (int i = 0; i < kN * 4; ++i) {
        total[i / 4][0][i % 4] += sum[i / 4][0][i % 4];
      }
    }
  }
  let_next_start();
  __syncthreads();  // everybody is done with the table
  share_sums<kN, kM>(reinterpret_cast<float*>(table), total);
  __syncthreads();
  store_block<T, kN, kM>(p, reinterpret_cast<const float*>(table));
}

}  // namespace vllm_spark::w4
