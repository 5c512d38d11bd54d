// AVX-512 (F BW DQ VL VNNI): 16 lanes, one register per 16-row group.
#pragma once
#include <immintrin.h>

#define OP static inline __attribute__((always_inline))

namespace llmrun::LLMRUN_BUILD {

constexpr int LANES = 16;
#if defined(LLMRUN_EMULATED)
constexpr int VECTOR_ROWS = 2;  // most rows of a vector tile; few, because they take the emulated builds long to compile
#elif defined(LLMRUN_BUILD_AMX)
constexpr int VECTOR_ROWS = 4;  // more rows go to the tile registers
#else
constexpr int VECTOR_ROWS = 8;
#endif
#if defined(LLMRUN_BUILD_AMX)
constexpr int TILE = 16;  // rows of a quantised tile: those of a tile register (tiles.h)
#else
constexpr int TILE = VECTOR_ROWS;
#endif
constexpr int FINE_TILE = TILE;  // the same with 16-bit activations: two byte planes a row
constexpr int FLOAT_TILE = 8;   // rows of a float tile
constexpr int FLOAT_GROUPS = 8; // groups taken together for a single row, to hide the latency of the one chain each has
constexpr int QUERY_TILE = 8;   // query vectors x 2 registers of keys
constexpr int VALUE_TILE = 6;   // query vectors x 4 registers of values
constexpr int PANEL_TILE = 6;     // query vectors x PANEL_VECTORS registers of widened values
constexpr int PANEL_VECTORS = 4;

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
OP I load_i(const void* p) { return _mm512_loadu_si512(p); }
OP void store_i(void* p, I v) { _mm512_storeu_si512(p, v); }
OP F to_float(I v) { return _mm512_cvtepi32_ps(v); }
OP I add_i(I a, I b) { return _mm512_add_epi32(a, b); }

OP F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
OP F set1_half(uint16_t v) { return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(v))); }
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

OP __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
OP F float_of_bytes(__m128i v) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v)); }
OP F load_low4(const uint8_t* p) { return float_of_bytes(_mm_and_si128(load16(p), _mm_set1_epi8(15))); }
OP F load_high4(const uint8_t* p) {
  return float_of_bytes(_mm_and_si128(_mm_srli_epi16(load16(p), 4), _mm_set1_epi8(15)));
}
// 2^(byte - 128), subnormal for 0 and 1.
OP F load_power(const uint8_t* p) {
  const I e = _mm512_cvtepu8_epi32(load16(p));
  const I normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), e));
}
// Half of a float of 4 exponent (bias 7) and 3 mantissa bits: its bits are those of an f16 that is 2^7 too small.
OP F load_byte_float(const uint8_t* p) {
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(p)), 7)), _mm512_set1_ps(128.0f));
}

// 2^-8 of 8-bit floats with a sign (half.h).
OP F load_signed_byte_float(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(load16(p));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  return _mm512_cvtph_ps(_mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7)));
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

// Bit FROM of each byte to bit TO; the bits beside it are for the caller to mask.
template <int FROM, int TO>
OP I move_bits(I v) {
  if constexpr (FROM < TO) return _mm512_slli_epi16(v, TO - FROM);
  if constexpr (FROM > TO) return _mm512_srli_epi16(v, FROM - TO);
  return v;
}
// v | (bits & mask)
OP I merge(I v, I bits, int mask) {
  return _mm512_ternarylogic_epi32(v, bits, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
OP I masked(I v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }

// Quads 2J (even) and 2J+1 (odd) of 16 rows, unsigned, their table applied. `high`: what load_high read.
template <class Q, int J>
OP void quads(const uint8_t* q, const I* high, I& even, I& odd) {
  if constexpr (Q::bits == 8) {
    even = _mm512_loadu_si512(q + 128 * J);
    odd = _mm512_loadu_si512(q + 128 * J + 64);
    return;
  }
  constexpr int pair = 4 * (J % 2);  // of the 2-bit fields of a line
  if constexpr (Q::bits >= 4) {
    const I line = _mm512_loadu_si512(q + 64 * J);
    even = masked(line, 15);
    odd = masked(move_bits<4, 0>(line), 15);
  } else if constexpr (Q::bits >= 2) {
    const I line = _mm512_loadu_si512(q + 64 * (J / 2));
    even = masked(move_bits<pair, 0>(line), 3);
    odd = masked(move_bits<pair + 2, 0>(line), 3);
  } else {
    even = masked(move_bits<2 * J, 0>(high[0]), 1);
    odd = masked(move_bits<2 * J + 1, 0>(high[0]), 1);
  }
  if constexpr (Q::bits == 5) {
    even = merge(even, move_bits<2 * J, 4>(high[0]), 16);
    odd = merge(odd, move_bits<2 * J + 1, 4>(high[0]), 16);
  }
  if constexpr (Q::bits == 6) {
    even = merge(even, move_bits<pair, 4>(high[J / 2]), 48);
    odd = merge(odd, move_bits<pair + 2, 4>(high[J / 2]), 48);
  }
  if constexpr (Q::bits == 3) {
    even = merge(even, move_bits<2 * J, 2>(high[0]), 4);
    odd = merge(odd, move_bits<2 * J + 1, 2>(high[0]), 4);
  }
  if constexpr (Q::lookup) {
    const I table = _mm512_broadcast_i32x4(load16(Q::table));
    even = _mm512_shuffle_epi8(table, even);
    odd = _mm512_shuffle_epi8(table, odd);
  }
}

OP I broadcast4(const int8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

template <class Q, int J, int T>
OP void step(const uint8_t* q, const I* high, const XBlock* x, I acc[T]) {
  I even, odd;
  quads<Q, J>(q, high, even, odd);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], even, broadcast4(x[m].q + 8 * J));
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], odd, broadcast4(x[m].q + 8 * J + 4));
}

template <class Q>
OP void load_high(const uint8_t* q, I high[2]) {
  constexpr int at = Q::bits == 1 ? 0 : Q::bits == 3 ? 128 : 256;
  if constexpr (Q::bits != 8 && (Q::bits % 2 || Q::bits == 6)) high[0] = _mm512_loadu_si512(q + at);
  if constexpr (Q::bits == 6) high[1] = _mm512_loadu_si512(q + at + 64);
}

// Where a sum of unsigned quants starts: minus the offset of each times its activation.
template <class Q>
OP I start(int32_t minus) {
  if constexpr (Q::offset == 0) return _mm512_setzero_si512();
  return _mm512_mullo_epi32(_mm512_set1_epi32(minus), _mm512_set1_epi32(Q::offset));
}

// acc[p][m] = sum over the block of value * x.
template <class Q, int T, int P>
OP void dot(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  I high[2];
  load_high<Q>(q, high);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) acc[0][m] = start<Q>(x[m].minus);
  step<Q, 0, T>(q, high, x, acc[0]);
  step<Q, 1, T>(q, high, x, acc[0]);
  step<Q, 2, T>(q, high, x, acc[0]);
  step<Q, 3, T>(q, high, x, acc[0]);
}

// The same for k 0..15 and 16..31 apart.
template <class Q, int T, int P>
OP void dot_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
  I high[2];
  load_high<Q>(q, high);
#pragma GCC unroll 16
  for (int m = 0; m < T; ++m) {
    low[0][m] = start<Q>(x[m].minus_low);
    up[0][m] = start<Q>(x[m].minus - x[m].minus_low);
  }
  step<Q, 0, T>(q, high, x, low[0]);
  step<Q, 1, T>(q, high, x, low[0]);
  step<Q, 2, T>(q, high, x, up[0]);
  step<Q, 3, T>(q, high, x, up[0]);
}

// 255 high + low, the sums of the two planes of 16-bit activations.
OP I join_planes(I high, I low) {
  return _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(high, 8), high), low);
}
OP void store_i8(int8_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}

// Rounded; 0 for NaN, so that no sum of such lanes overflows.
OP I numbers(F v) { return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v); }

OP void quantize_block(const float* x, XBlock* out) {
  const F a = load(x), b = load(x + 16);
  const float most = hmax(maxf(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const float inverse = most >= LEAST_ACTIVATION ? 127.0f / most : 0.0f;
  const I qa = numbers(mul(a, set1(inverse)));
  const I qb = numbers(mul(b, set1(inverse)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q), _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16), _mm512_cvtsepi32_epi8(qb));
  out->d = most * (1.0f / 127.0f);
  set_sums(out, _mm512_reduce_add_epi32(qa), _mm512_reduce_add_epi32(qb));
}

}  // namespace llmrun::LLMRUN_BUILD
