// Kernels of drafters that work on blocks of rows.
#include "simd.h"

namespace llmrun::LLMRUN_BUILD {

// out[r, c] = sum over taps t, first to last, of (base[t, c] + change[r, t, c's group]) * x[r - t, c], over rows of one
// sequence. One unit is a row.
void block_conv(const Job& job) {
  const int64_t *n = job.op->n, width = n[1], taps = n[2], groups = n[3], side = n[4], size = width / groups;
  const float *x = static_cast<const float*>(job.op->p[0]), *change = static_cast<const float*>(job.op->p[1]);
  const float* base = static_cast<const float*>(job.op->p[2]) + side * taps * width;
  const int32_t* sequences = static_cast<const int32_t*>(job.op->p[3]);
  float* out = static_cast<float*>(job.op->p[4]);
  for (int64_t r = job.begin; r < job.end; ++r)
    for (int64_t t = 0; t < taps && t <= r && sequences[r - t] == sequences[r]; ++t)
      for (int64_t g = 0; g < groups; ++g) {
        const float more = change[((r * 2 + side) * taps + t) * groups + g];
        const float *from = x + (r - t) * width + g * size, *weight = base + t * width + g * size;
        float* to = out + r * width + g * size;
        if (t == 0)
          for (int64_t c = 0; c < size; ++c) to[c] = (weight[c] + more) * from[c];
        else
          for (int64_t c = 0; c < size; ++c) to[c] += (weight[c] + more) * from[c];
      }
}

}  // namespace llmrun::LLMRUN_BUILD
