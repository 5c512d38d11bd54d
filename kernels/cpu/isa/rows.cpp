// Row-wise kernels of a build: norm, activation quantisation, SiLU product, sum, rotation, cache store.
#include <math.h>

#include "../core/half.h"
#include "simd.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

OP const float* source(const Job& job, int i) { return static_cast<const float*>(job.op->p[i]); }
OP float* target(const Job& job, int i) { return static_cast<float*>(job.op->p[i]); }

float mean_square(const float* x, int64_t width) {
  F sum = zero();
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) sum = fma(load(x + i), load(x + i), sum);
  if (i < width) {
    const F rest = load_n(x + i, static_cast<int>(width - i));
    sum = fma(rest, rest, sum);
  }
  return hsum(sum) / static_cast<float>(width);
}

// value(first lane, lanes) over [begin, end) in LANES steps, the last one partial.
template <class Body>
OP void lanes(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + LANES <= end; i += LANES) body(i, LANES);
  if (i < end) body(i, static_cast<int>(end - i));
}

OP F load_some(const float* p, int n) { return n == LANES ? load(p) : load_n(p, n); }
OP void store_some(float* p, F v, int n) {
  if (n == LANES)
    store(p, v);
  else
    store_n(p, v, n);
}

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

// Tiles of TILE rows: [tile][block][row of the tile]. Fine: each row makes two, its quants and those of what they miss.
void quantize(const Job& job) {
  const int64_t cols = job.op->n[1], blocks = cols / BLOCK;
  const int64_t terms = job.op->flags & FINE ? 2 : 1, rows = job.op->n[0] * terms;
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t base = r * terms / TILE * TILE;
    const int64_t count = rows - base < TILE ? rows - base : TILE;
    const float* x = source(job, 0) + r * cols;
    XBlock* out = static_cast<XBlock*>(job.op->p[1]) + base * blocks + (r * terms - base);
    for (int64_t b = 0; b < blocks; ++b, x += BLOCK, out += count) {
      quantize_block(x, out);
      if (terms == 1) continue;
      float rest[BLOCK];
      for (int i = 0; i < BLOCK; ++i) rest[i] = x[i] - out->d * static_cast<float>(out->q[i]);
      quantize_block(rest, out + 1);
    }
  }
}

void silu_mul(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  const float *gate = source(job, 0), *up = source(job, 1);
  float* out = target(job, 2);
  lanes(job.begin * CHUNK_ELEMENTS, end, [&](int64_t i, int n) {
    const F g = maxf(set1(-88.0f), load_some(gate + i, n));  // below, the product with the sigmoid only goes to 0
    const F divisor = add(set1(1.0f), exp(sub(zero(), g)));
    store_some(out + i, mul(div(g, divisor), load_some(up + i, n)), n);
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
  const int64_t heads = op.n[1], width = op.n[2], page_tokens = op.n[3], pages = op.n[4], type = op.n[5];
  const int64_t bytes = width * (type == LLMRUN_F32 ? 4 : 2);
  const int32_t* slots = static_cast<const int32_t*>(op.p[4]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t slot = slots[r];
    if (slot < 0 || slot >= pages * page_tokens) {
      report(job, LLMRUN_BAD_SLOT);
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t place = (slot / page_tokens * heads + h) * page_tokens + slot % page_tokens;
      const int64_t row = (r * heads + h) * width;
      store_row(source(job, 0) + row, static_cast<uint8_t*>(op.p[2]) + place * bytes, width, type);
      store_row(source(job, 1) + row, static_cast<uint8_t*>(op.p[3]) + place * bytes, width, type);
    }
  }
}

}  // namespace llmrun::LLMRUN_BUILD
