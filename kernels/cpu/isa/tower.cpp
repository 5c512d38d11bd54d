// Kernels of image towers: layer norm and GELU.
#include <math.h>

#include "simd.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

OP const float* source(const Job& job, int i) { return static_cast<const float*>(job.op->p[i]); }
OP float* target(const Job& job, int i) { return static_cast<float*>(job.op->p[i]); }

float mean_of(const float* x, int64_t width) {
  F sum = zero();
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) sum = add(sum, load(x + i));
  float total = hsum(sum);
  for (; i < width; ++i) total += x[i];
  return total / static_cast<float>(width);
}

float variance_of(const float* x, int64_t width, float mean) {
  F sum = zero();
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const F off = sub(load(x + i), set1(mean));
    sum = fma(off, off, sum);
  }
  float total = hsum(sum);
  for (; i < width; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total / static_cast<float>(width);
}

// x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
OP F gelu_tanh(F x) {
  const F cube = mul(mul(x, x), x);
  const F minus_two_u = mul(set1(-1.5957691216057308f), fma(set1(0.044715f), cube, x));
  const F power = exp(minf(set1(88.0f), maxf(set1(-88.0f), minus_two_u)));
  return div(x, add(set1(1.0f), power));
}

}  // namespace

void layer_norm(const Job& job) {
  const int64_t width = job.op->n[1];
  const float *weight = source(job, 1), *bias = source(job, 2);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = source(job, 0) + r * width;
    float* out = target(job, 3) + r * width;
    const float mean = mean_of(x, width);
    const float scale = 1.0f / sqrtf(variance_of(x, width, mean) + job.op->f[0]);
    for (int64_t i = 0; i < width; i += LANES) {
      const int n = width - i < LANES ? static_cast<int>(width - i) : LANES;
      const F value = mul(sub(load_n(x + i, n), set1(mean)), set1(scale));
      store_n(out + i, fma(value, load_n(weight + i, n), load_n(bias + i, n)), n);
    }
  }
}

void gelu(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  const float* x = source(job, 0);
  float* out = target(job, 1);
  int64_t i = job.begin * CHUNK_ELEMENTS;
  if (job.op->flags & GELU_TANH)
    for (; i < end; i += LANES) {
      const int n = end - i < LANES ? static_cast<int>(end - i) : LANES;
      store_n(out + i, gelu_tanh(load_n(x + i, n)), n);
    }
  else
    for (; i < end; ++i) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f));
}

}  // namespace llmrun::LLMRUN_BUILD
