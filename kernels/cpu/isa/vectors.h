// Helpers of the row-wise kernels: loops over lanes with a partial last step, sums, activations.
#pragma once
#include <math.h>

#include "simd.h"

namespace llmrun::LLMRUN_BUILD {

static inline float mean_square(const float* x, int64_t width) {
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

// x sigmoid(x). Below -88 the product only goes to 0.
OP F silu(F x) {
  x = maxf(set1(-88.0f), x);
  return div(x, add(set1(1.0f), exp(sub(zero(), x))));
}

OP F sigmoid(F x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

}  // namespace llmrun::LLMRUN_BUILD
