// Row-wise kernels of a build: norm, activation quantisation, SiLU product, sum, rotation, cache store.
#include <math.h>

#include "../core/half.h"
#include "vectors.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

OP const float* source(const Job& job, int i) { return static_cast<const float*>(job.op->p[i]); }
OP float* target(const Job& job, int i) { return static_cast<float*>(job.op->p[i]); }

template <bool ADJACENT>
void rotate(float* head, const float* cosine, const float* sine, int64_t pairs) {
  const int64_t step = ADJACENT ? 2 : 1, other = ADJACENT ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    float* a = head + i * step;
    const float x = *a, y = a[other];
    *a = x * cosine[i] - y * sine[i];
    a[other] = y * cosine[i] + x * sine[i];
  }
}

// A row as bytes; returns its scale. A row that is not finite gets a scale that is not.
float quantize_row(const float* row, uint8_t* out, int64_t width) {
  F most = zero(), wrong = zero();
  lanes(0, width, [&](int64_t i, int n) {
    const F x = load_some(row + i, n);
    most = maxf(most, maxf(x, sub(zero(), x)));
    wrong = fma(x, zero(), wrong);
  });
  const float top = hmax(most);
  const F inverse = set1(top >= LEAST_ACTIVATION ? 127.0f / top : 0.0f);
  int8_t bytes[LANES];
  lanes(0, width, [&](int64_t i, int n) {
    store_i8(bytes, round_nearest(mul(load_some(row + i, n), inverse)));
    __builtin_memcpy(out + i, bytes, static_cast<size_t>(n));
  });
  return top * (1.0f / 127.0f) + hsum(wrong);
}

void store_row(const float* row, uint8_t* cache, int64_t width, int64_t type) {
  if (type == LLMRUN_F32) {
    __builtin_memcpy(cache, row, static_cast<size_t>(width) * 4);
    return;
  }
  uint16_t* out = reinterpret_cast<uint16_t*>(cache);
  int64_t i = 0;
  if (type == LLMRUN_F16)
    for (; i + LANES <= width; i += LANES) store_half(out + i, load(row + i));
  for (; i < width; ++i) out[i] = type == LLMRUN_F16 ? float_to_half(row[i]) : float_to_bfloat(row[i]);
}

// A block of values as codes of 4 bits: 20 bytes as Q4_1 has them. A block that is not finite gets a scale that is not.
void quantize_value_block(const float* x, uint8_t* out) {
  F least = load(x), most = least, wrong = zero();
  for (int i = 0; i < BLOCK; i += LANES) {
    const F part = load(x + i);
    least = minf(least, part), most = maxf(most, part), wrong = fma(part, zero(), wrong);
  }
  const bool finite = hsum(wrong) == 0.0f;
  const float low = 0.0f - hmax(sub(zero(), least));  // never -0
  const uint16_t head[2] = {finite ? float_to_half((hmax(most) - low) * (1.0f / 15.0f)) : static_cast<uint16_t>(0x7e00),
                            finite ? float_to_half(low) : static_cast<uint16_t>(0)};
  const float scale = half_to_float(head[0]);  // as it is read: codes make up for its rounding
  const F inverse = set1(scale > 0.0f ? 1.0f / scale : 0.0f), start = set1(half_to_float(head[1]));
  int8_t codes[BLOCK];
  for (int i = 0; i < BLOCK; i += LANES) {
    const F code = round_nearest(mul(sub(load(x + i), start), inverse));
    store_i8(codes + i, minf(maxf(code, zero()), set1(15.0f)));
  }
  __builtin_memcpy(out, head, 4);
  for (int i = 0; i < BLOCK / 2; ++i) out[4 + i] = static_cast<uint8_t>(codes[i] | codes[i + BLOCK / 2] << 4);
}

// A row of values in such blocks; the last one is filled up with the row's last element.
void store_value_blocks(const float* row, uint8_t* out, int64_t width) {
  for (int64_t i = 0; i < width; i += BLOCK, out += VALUE_BLOCK_BYTES) {
    if (width - i >= BLOCK) {
      quantize_value_block(row + i, out);
      continue;
    }
    float filled[BLOCK];
    for (int64_t j = 0; j < BLOCK; ++j) filled[j] = row[i + j < width ? i + j : width - 1];
    quantize_value_block(filled, out);
  }
}

// Elements of `bytes` bytes, KEY_BLOCK of them apart.
void spread(const uint8_t* from, uint8_t* to, int64_t count, int64_t bytes) {
  for (int64_t j = 0; j < count; ++j)
    switch (bytes) {
      case 1: to[j * KEY_BLOCK] = from[j]; break;
      case 2: __builtin_memcpy(to + j * KEY_BLOCK * 2, from + j * 2, 2); break;
      default: __builtin_memcpy(to + j * KEY_BLOCK * 4, from + j * 4, 4);
    }
}

// The key of one token into its block; `cache` is where the page keeps this head, `token` its number in the page.
void store_key(const float* row, uint8_t* cache, int64_t token, int64_t width, int64_t type) {
  const int64_t first = token / KEY_BLOCK * KEY_BLOCK * width + token % KEY_BLOCK;
  constexpr int64_t piece = 64;
  alignas(64) uint8_t stored[piece * 4];
  for (int64_t i = 0; i < width; i += piece) {
    const int64_t count = width - i < piece ? width - i : piece;
    store_row(row + i, stored, count, type);
    const int64_t at = first + i * KEY_BLOCK;
    spread(stored, cache + at * cache_bytes(type), count, cache_bytes(type));
  }
}

// Keys or values of a layer.
struct Store {
  int64_t type;
  uint8_t* cache;
  float* scales;
};

// A token's row; `place`: the rows before this page and head, `token` its number in the page.
void store_token(const Store& store, const float* row, int64_t place, int64_t token, int64_t width, bool blocks) {
  if (store.type == LLMRUN_Q4_1)
    return store_value_blocks(row, store.cache + (place + token) * value_row_bytes(store.type, width), width);
  const int64_t bytes = cache_bytes(store.type);
  uint8_t* out = store.cache + place * width * bytes;
  if (store.type == LLMRUN_I8) {
    uint8_t quants[MOST_HEAD_WIDTH];
    store.scales[place + token] = quantize_row(row, quants, width);
    if (blocks)
      spread(quants, out + token / KEY_BLOCK * KEY_BLOCK * width + token % KEY_BLOCK, width, 1);
    else
      __builtin_memcpy(out + token * width, quants, static_cast<size_t>(width));
    return;
  }
  if (blocks)
    store_key(row, out, token, width, store.type);
  else
    store_row(row, out + token * width * bytes, width, store.type);
}

// A sum of quants as an integer; 0 where a row is not finite.
int32_t whole(float sum, int most = MOST_16_BIT) {
  return sum >= static_cast<float>(-most) && sum <= static_cast<float>(most) ? static_cast<int32_t>(sum) : 0;
}

#if defined(LLMRUN_WORDS)
// 16-bit activations of a block as words: out[0] the first half, out[1] the second; out[0].minus is of both.
void store_fine(const float* x, F inverse, XBlock* out) {
  float sums[2];
  for (int half = 0; half < 2; ++half) {
    const F a = round_nearest(mul(load(x + 16 * half), inverse)), b = round_nearest(mul(load(x + 16 * half + 8), inverse));
    store_words(out[half].q, a, b);
    sums[half] = hsum(add(a, b));  // whole numbers below 2^24: exact in any order
    out[half].minus_low = -whole(sums[half], BLOCK * MOST_16_BIT);
    out[half].minus = 0;
  }
  out[0].sum = sums[0] + sums[1];
  out[0].minus = -whole(out[0].sum, BLOCK * MOST_16_BIT);
}
#else
// 16-bit activations of a block: out[0] the high plane, out[1] the low one.
void store_fine(const float* x, F inverse, XBlock* out) {
  float high_sum[2] = {0, 0}, low_sum[2] = {0, 0};
  for (int i = 0; i < BLOCK; i += LANES) {
    const F q = round_nearest(mul(load(x + i), inverse));
    const F high = round_nearest(mul(q, set1(1.0f / PLANE)));  // never a tie: q is whole and 255 odd
    const F low = fma(high, set1(-static_cast<float>(PLANE)), q);
    store_i8(out[0].q + i, high);
    store_i8(out[1].q + i, low);
    high_sum[i >= BLOCK / 2] += hsum(high);  // whole numbers below 2^24: exact in any order
    low_sum[i >= BLOCK / 2] += hsum(low);
  }
  out[0].sum = PLANE * (high_sum[0] + high_sum[1]) + (low_sum[0] + low_sum[1]);
  out[0].minus_low = -whole(high_sum[0]);
  out[0].minus = -whole(high_sum[0] + high_sum[1]);
  out[1].minus_low = -whole(low_sum[0]);
  out[1].minus = -whole(low_sum[0] + low_sum[1]);
}
#endif

void quantize_fine(const float* x, XBlock* out) {
  F most = zero();
  for (int i = 0; i < BLOCK; i += LANES) most = maxf(most, maxf(load(x + i), sub(zero(), load(x + i))));
  const float top = hmax(most);
  store_fine(x, set1(top >= LEAST_ACTIVATION ? static_cast<float>(MOST_16_BIT) / top : 0.0f), out);
  out[0].d = top * (1.0f / MOST_16_BIT);
  out[1].d = out[1].sum = 0.0f;
}

// Tiles of TILE or FINE_TILE rows: [tile][block][row of the tile][plane].
template <int PLANES>
void quantize_rows(const Job& job) {
  constexpr int64_t tile = PLANES == 1 ? TILE : FINE_TILE;
  const int64_t rows = job.op->n[0], cols = job.op->n[1], blocks = cols / BLOCK;
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t base = r / tile * tile;
    const int64_t count = rows - base < tile ? rows - base : tile;
    const float* x = source(job, 0) + r * cols;
    XBlock* out = static_cast<XBlock*>(job.op->p[1]) + (base * blocks + (r - base)) * PLANES;
    for (int64_t b = 0; b < blocks; ++b, out += count * PLANES) {
      if constexpr (PLANES == 1)
        quantize_block(x + b * BLOCK, out);
      else
        quantize_fine(x + b * BLOCK, out);
    }
  }
}

}  // namespace

void rms_norm(const Job& job) {
  const int64_t width = job.op->n[1];
  const float* weight = source(job, 1);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = source(job, 0) + r * width;
    float* out = target(job, 2) + r * width;
    const F scale = set1(1.0f / sqrtf(mean_square(x, width) + job.op->f[0]));
    lanes(0, width, [&](int64_t i, int n) {
      store_some(out + i, mul(mul(load_some(x + i, n), scale), load_some(weight + i, n)), n);
    });
  }
}

void quantize(const Job& job) {
  if (job.op->flags & FINE)
    quantize_rows<2>(job);
  else
    quantize_rows<1>(job);
}

void silu_mul(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  const float *gate = source(job, 0), *up = source(job, 1);
  float* out = target(job, 2);
  lanes(job.begin * CHUNK_ELEMENTS, end, [&](int64_t i, int n) {
    store_some(out + i, mul(silu(load_some(gate + i, n)), load_some(up + i, n)), n);
  });
}

void add(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  lanes(job.begin * CHUNK_ELEMENTS, end, [&](int64_t i, int n) {
    store_some(target(job, 2) + i, add(load_some(source(job, 0) + i, n), load_some(source(job, 1) + i, n)), n);
  });
}

void rope(const Job& job) {
  const int64_t heads = job.op->n[1], width = job.op->n[2], pairs = job.op->n[3];
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float *cosine = source(job, 1) + r * pairs, *sine = source(job, 2) + r * pairs;
    for (int64_t h = 0; h < heads; ++h) {
      float* head = target(job, 0) + (r * heads + h) * width;
      if (job.op->flags & ADJACENT_PAIRS)
        rotate<true>(head, cosine, sine, pairs);
      else
        rotate<false>(head, cosine, sine, pairs);
    }
  }
}

void kv_store(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t heads = op.n[1], width = op.n[2], page_tokens = op.n[3], pages = op.n[4];
  const int32_t* slots = static_cast<const int32_t*>(op.p[4]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t slot = slots[r];
    if (slot < 0 || slot >= pages * page_tokens) {
      report(job, LLMRUN_BAD_SLOT);
      continue;
    }
    const int64_t token = slot % page_tokens;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t place = (slot / page_tokens * heads + h) * page_tokens;
      const int64_t row = (r * heads + h) * width;
      for (int side = 0; side < 2; ++side) {
        const Store store = {op.n[5 + side], static_cast<uint8_t*>(op.p[2 + side]), target(job, 5 + side)};
        store_token(store, source(job, side) + row, place, token, width, side == 0 && keys_in_blocks(page_tokens));
      }
    }
  }
}

}  // namespace llmrun::LLMRUN_BUILD
