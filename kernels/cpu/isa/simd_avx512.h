// AVX-512 (F BW DQ VL VNNI): 16 lanes, one register per 16-row group.
#pragma once
#include <immintrin.h>

#define OP static inline __attribute__((always_inline))

namespace llmrun::LLMRUN_BUILD {

constexpr int LANES = 16;
constexpr int TILE = 8;         // rows of a quantised tile
constexpr int FINE_TILE = 8;    // the same with 16-bit activations: two byte planes a row
constexpr int FLOAT_TILE = 8;   // rows of a float tile
constexpr int FLOAT_GROUPS = 8; // groups taken together for a single row, to hide the latency of the one chain each has
constexpr int QUERY_TILE = 8;   // query vectors x 2 registers of keys
constexpr int VALUE_TILE = 6;   // query vectors x 4 registers of values

using F = __m512;
using I = __m512i;

OP F zero() { return _mm512_setzero_ps(); }
OP F set1(float v) { return _mm512_set1_ps(v); }
OP F load(const float* p) { return _mm512_loadu_ps(p); }
OP void store(float* p, F v) { _mm512_storeu_ps(p, v); }
OP __mmask16 below(int n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << n) - 1u); }
OP F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(below(n), p); }
OP void store_n(float* p, F v, int n) { _mm512_mask_storeu_ps(p, below(n), v); }
OP F add(F a, F b) { return _mm512_add_ps(a, b); }
OP F sub(F a, F b) { return _mm512_sub_ps(a, b); }
OP F mul(F a, F b) { return _mm512_mul_ps(a, b); }
OP F div(F a, F b) { return _mm512_div_ps(a, b); }
OP F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
OP F maxf(F a, F b) { return _mm512_max_ps(a, b); }
OP F minf(F a, F b) { return _mm512_min_ps(a, b); }
OP F round_nearest(F v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OP F scale2(F v, F n) { return _mm512_scalef_ps(v, n); }
OP F keep_below(F v, int n) { return _mm512_maskz_mov_ps(below(n), v); }
OP F fill_from(F v, int n, float fill) { return _mm512_mask_mov_ps(_mm512_set1_ps(fill), below(n), v); }
OP float hsum(F v) { return _mm512_reduce_add_ps(v); }
OP float hmax(F v) { return _mm512_reduce_max_ps(v); }
OP F to_float(I v) { return _mm512_cvtepi32_ps(v); }
OP I add_i(I a, I b) { return _mm512_add_epi32(a, b); }

OP F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
OP F load_half_n(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(below(n), p)); }
OP F widen_bfloat(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
OP F load_bfloat(const uint16_t* p) { return widen_bfloat(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
OP F load_bfloat_n(const uint16_t* p, int n) { return widen_bfloat(_mm256_maskz_loadu_epi16(below(n), p)); }
OP void store_half(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
OP F load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
OP F load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// r[i] lane j <-> r[j] lane i.
OP void transpose(F r[16]) {
  F t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  __m512d* d = reinterpret_cast<__m512d*>(t);
  F u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(d[i], d[i + 2]));
    u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(d[i], d[i + 2]));
    u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(d[i + 1], d[i + 3]));
    u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(d[i + 1], d[i + 3]));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}

// Quants to come: line J holds k 8J..8J+3 (even) and 8J+4..8J+7 (odd) of 16 rows, unsigned.
template <int BITS, int J>
OP void quads(const uint8_t* q, const I* high, I& even, I& odd) {
  if constexpr (BITS == 8) {
    even = _mm512_loadu_si512(q + 128 * J);
    odd = _mm512_loadu_si512(q + 128 * J + 64);
    return;
  }
  const I nibble = _mm512_set1_epi8(15);
  const I line = _mm512_loadu_si512(q + 64 * J);
  even = _mm512_and_si512(line, nibble);
  odd = _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble);
  if constexpr (BITS == 5) {
    const I bit = _mm512_set1_epi8(16);
    constexpr int up = J < 2 ? 4 - 2 * J : 0, down = J < 2 ? 0 : 2 * J - 4;
    const I a = J < 2 ? _mm512_slli_epi16(high[0], up) : _mm512_srli_epi16(high[0], down);
    constexpr int up1 = J < 2 ? 3 - 2 * J : 0, down1 = J < 2 ? 0 : 2 * J - 3;
    const I b = J < 2 ? _mm512_slli_epi16(high[0], up1) : _mm512_srli_epi16(high[0], down1);
    even = _mm512_ternarylogic_epi32(even, a, bit, 0xf8);  // even | (a & bit)
    odd = _mm512_ternarylogic_epi32(odd, b, bit, 0xf8);
  }
  if constexpr (BITS == 6) {
    const I bits = _mm512_set1_epi8(48);
    const I h = high[J / 2];
    const I a = J % 2 == 0 ? _mm512_slli_epi16(h, 4) : h;
    const I b = J % 2 == 0 ? _mm512_slli_epi16(h, 2) : _mm512_srli_epi16(h, 2);
    even = _mm512_ternarylogic_epi32(even, a, bits, 0xf8);
    odd = _mm512_ternarylogic_epi32(odd, b, bits, 0xf8);
  }
}

OP I broadcast4(const int8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

template <int BITS, int J, int T>
OP void step(const uint8_t* q, const I* high, const XBlock* x, I acc[T]) {
  I even, odd;
  quads<BITS, J>(q, high, even, odd);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], even, broadcast4(x[m].q + 8 * J));
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], odd, broadcast4(x[m].q + 8 * J + 4));
}

template <int BITS>
OP void load_high(const uint8_t* q, I high[2]) {
  if constexpr (BITS == 5 || BITS == 6) high[0] = _mm512_loadu_si512(q + 256);
  if constexpr (BITS == 6) high[1] = _mm512_loadu_si512(q + 320);
}

// acc[p][m] = sum over the block of (quant - 2^SHIFT) * x (SHIFT 0: no offset).
template <int BITS, int SHIFT, int T, int P>
OP void dot(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  I high[2];
  load_high<BITS>(q, high);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m)
    acc[0][m] = SHIFT ? _mm512_slli_epi32(_mm512_set1_epi32(x[m].minus), SHIFT) : _mm512_setzero_si512();
  step<BITS, 0, T>(q, high, x, acc[0]);
  step<BITS, 1, T>(q, high, x, acc[0]);
  step<BITS, 2, T>(q, high, x, acc[0]);
  step<BITS, 3, T>(q, high, x, acc[0]);
}

// The same for k 0..15 and 16..31 apart.
template <int BITS, int SHIFT, int T, int P>
OP void dot_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
  I high[2];
  load_high<BITS>(q, high);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) {
    low[0][m] = _mm512_slli_epi32(_mm512_set1_epi32(x[m].minus_low), SHIFT);
    up[0][m] = _mm512_slli_epi32(_mm512_set1_epi32(x[m].minus - x[m].minus_low), SHIFT);
  }
  step<BITS, 0, T>(q, high, x, low[0]);
  step<BITS, 1, T>(q, high, x, low[0]);
  step<BITS, 2, T>(q, high, x, up[0]);
  step<BITS, 3, T>(q, high, x, up[0]);
}

// 255 high + low, the sums of the two planes of 16-bit activations.
OP I join_planes(I high, I low) {
  return _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(high, 8), high), low);
}
OP void store_i8(int8_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}

OP void quantize_block(const float* x, XBlock* out) {
  const F a = load(x), b = load(x + 16);
  const float most = hmax(maxf(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  const I qa = _mm512_cvtps_epi32(mul(a, set1(inverse)));
  const I qb = _mm512_cvtps_epi32(mul(b, set1(inverse)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q), _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16), _mm512_cvtsepi32_epi8(qb));
  const int low = _mm512_reduce_add_epi32(qa), all = low + _mm512_reduce_add_epi32(qb);
  out->d = most * (1.0f / 127.0f);
  out->sum = static_cast<float>(all);
  out->minus = -all;
  out->minus_low = -low;
}

}  // namespace llmrun::LLMRUN_BUILD
