// Residual streams (hyper-connections): a norm for each stream, the gated mean over them, and what is added to them.
// One unit is a row; the sums of a row are taken in one order.
#include <math.h>

#include "vectors.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

OP const float* source(const Job& job, int i) { return static_cast<const float*>(job.op->p[i]); }
OP float* target(const Job& job, int i) { return static_cast<float*>(job.op->p[i]); }

float dot(const float* a, const float* b, int64_t width) {
  F sum = zero();
  lanes(0, width, [&](int64_t i, int n) { sum = fma(load_some(a + i, n), load_some(b + i, n), sum); });
  return hsum(sum);
}

}  // namespace

void stream_norm(const Job& job) {
  const int64_t streams = job.op->n[1], width = job.op->n[2];
  for (int64_t r = job.begin * streams; r < job.end * streams; ++r) {
    const float *x = source(job, 0) + r * width, *weight = source(job, 1) + r % streams * width;
    float* out = target(job, 2) + r * width;
    const F scale = set1(1.0f / sqrtf(dot(x, x, width) / static_cast<float>(width) + job.op->f[0]));
    lanes(0, width, [&](int64_t i, int n) {
      store_some(out + i, mul(mul(load_some(x + i, n), scale), load_some(weight + i, n)), n);
    });
  }
}

void silu_scaled(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  const F scale = set1(job.op->f[0]);
  lanes(job.begin * CHUNK_ELEMENTS, end, [&](int64_t i, int n) {
    store_some(target(job, 1) + i, silu(mul(load_some(source(job, 0) + i, n), scale)), n);
  });
}

void stream_mix(const Job& job) {
  const int64_t streams = job.op->n[1], width = job.op->n[2];
  const F share = set1(1.0f / static_cast<float>(streams));
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float *x = source(job, 0) + r * streams * width, *gate = source(job, 1) + r * streams * width;
    lanes(0, width, [&](int64_t i, int n) {
      F sum = zero();
      for (int64_t s = 0; s < streams; ++s)
        sum = fma(sigmoid(load_some(gate + s * width + i, n)), load_some(x + s * width + i, n), sum);
      store_some(target(job, 2) + r * width + i, mul(sum, share), n);
    });
  }
}

void stream_add(const Job& job) {
  const int64_t streams = job.op->n[1], width = job.op->n[2];
  for (int64_t r = job.begin; r < job.end; ++r)
    for (int64_t s = 0; s < streams; ++s) {
      const float raw = source(job, 1)[r * streams + s] / static_cast<float>(streams);
      const F weight = set1(2.0f * first(sigmoid(set1(raw))));
      const float* y = source(job, 0) + r * width;
      float* out = target(job, 2) + (r * streams + s) * width;
      lanes(0, width, [&](int64_t i, int n) {
        store_some(out + i, fma(weight, load_some(y + i, n), load_some(out + i, n)), n);
      });
    }
}

void stream_gate(const Job& job) {
  const int64_t streams = job.op->n[1], width = job.op->n[2];
  for (int64_t r = job.begin; r < job.end; ++r)
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t at = (r * streams + s) * width;
      const float raw = dot(source(job, 0) + at, source(job, 1) + at, width) / sqrtf(static_cast<float>(width));
      const float size = sqrtf(fmaxf(fabsf(raw), 1e-6f));
      const F weight = sigmoid(set1(raw > 0 ? size : raw < 0 ? -size : raw));
      const float* value = source(job, 2) + r * width;
      lanes(0, width, [&](int64_t i, int n) {
        store_some(target(job, 3) + at + i, mul(weight, load_some(value + i, n)), n);
      });
    }
}

}  // namespace llmrun::LLMRUN_BUILD
