// AVX2 with FMA and F16C: 8 lanes, a 16-row group is two parts. Products are u8 x s8 in 16 bit pairs; the number of
// pairs added before widening is bounded by the quant's bits so that no sum can saturate. The avxvnni build adds up
// quads in 32 bits instead, by AVX-VNNI.
#pragma once
#include <immintrin.h>

#define OP static inline __attribute__((always_inline))

namespace llmrun::LLMRUN_BUILD {

constexpr int LANES = 8;
constexpr int TILE = 4;
constexpr int FINE_TILE = 4;
#if defined(LLMRUN_BUILD_AVXVNNI)
constexpr bool QUADS = true;  // four products are added in one instruction; quants stay unsigned
#else
constexpr bool QUADS = false;
#define LLMRUN_WORDS  // 16-bit activations are words: fewer products than two byte planes take, and none saturates
#endif
constexpr int FLOAT_TILE = 6;
constexpr int FLOAT_GROUPS = 6;
constexpr int QUERY_TILE = 6;
constexpr int VALUE_TILE = 3;
constexpr int PANEL_TILE = 6;     // query vectors x PANEL_VECTORS registers of widened values
constexpr int PANEL_VECTORS = 2;

using F = __m256;
using I = __m256i;

OP F zero() { return _mm256_setzero_ps(); }
OP F set1(float v) { return _mm256_set1_ps(v); }
OP F load(const float* p) { return _mm256_loadu_ps(p); }
OP void store(float* p, F v) { _mm256_storeu_ps(p, v); }
OP I below(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
OP F load_n(const float* p, int n) { return _mm256_maskload_ps(p, below(n)); }
OP void store_n(float* p, F v, int n) { _mm256_maskstore_ps(p, below(n), v); }
OP F add(F a, F b) { return _mm256_add_ps(a, b); }
OP F sub(F a, F b) { return _mm256_sub_ps(a, b); }
OP F mul(F a, F b) { return _mm256_mul_ps(a, b); }
OP F div(F a, F b) { return _mm256_div_ps(a, b); }
OP F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
OP F maxf(F a, F b) { return _mm256_max_ps(a, b); }
OP F minf(F a, F b) { return _mm256_min_ps(a, b); }
OP F round_nearest(F v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OP F scale2(F v, F n) {
  const I power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(v, _mm256_castsi256_ps(power));
}
OP F keep_below(F v, int n) { return _mm256_and_ps(v, _mm256_castsi256_ps(below(n))); }
OP F fill_from(F v, int n, float fill) {
  return _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(below(n)));
}
OP float hsum(F v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
OP float hmax(F v) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
OP F to_float(I v) { return _mm256_cvtepi32_ps(v); }

OP __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
OP __m128i load16_n(const uint16_t* p, int n) {
  uint16_t part[8] = {0};
  for (int i = 0; i < n && i < 8; ++i) part[i] = p[i];
  return load16(part);
}
OP F widen_bfloat(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
OP F load_half(const uint16_t* p) { return _mm256_cvtph_ps(load16(p)); }
OP F set1_half(uint16_t v) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(v))); }
OP F load_half_n(const uint16_t* p, int n) { return _mm256_cvtph_ps(load16_n(p, n)); }
OP F load_bfloat(const uint16_t* p) { return widen_bfloat(load16(p)); }
OP F load_bfloat_n(const uint16_t* p, int n) { return widen_bfloat(load16_n(p, n)); }
OP void store_half(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
OP __m128i load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
OP F load_u8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(p))); }
OP F load_i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p))); }

OP F load_low4(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(load8(p), _mm_set1_epi8(15))));
}
OP F load_high4(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(load8(p), 4), _mm_set1_epi8(15))));
}
// 2^(byte - 128), subnormal for 0 and 1.
OP F load_power(const uint8_t* p) {
  const I e = _mm256_cvtepu8_epi32(load8(p));
  const I normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const I subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const I small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
}
// Half of a float of 4 exponent (bias 7) and 3 mantissa bits: its bits are those of an f16 that is 2^7 too small.
OP F load_byte_float(const uint8_t* p) {
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load8(p)), 7)), _mm256_set1_ps(128.0f));
}

// 2^-8 of 8-bit floats with a sign (half.h).
OP F load_signed_byte_float(const uint8_t* p) {
  const __m128i wide = _mm_cvtepu8_epi16(load8(p));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  return _mm256_cvtph_ps(_mm_or_si128(sign, _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7)));
}

OP void transpose(F r[8]) {
  F t[8], u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

OP I loadi(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Bit FROM of each byte to bit TO; the bits beside it are for the caller to mask.
template <int FROM, int TO>
OP I move_bits(I v) {
  if constexpr (FROM < TO) return _mm256_slli_epi16(v, TO - FROM);
  if constexpr (FROM > TO) return _mm256_srli_epi16(v, FROM - TO);
  return v;
}
OP I masked(I v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
OP I merge(I v, I bits, int mask) { return _mm256_or_si256(v, masked(bits, mask)); }

// Quads 2J (even) and 2J+1 (odd) of 8 rows, their table applied; values of 8 bits come out signed if SIGNED.
template <class Q, int J, bool SIGNED = !QUADS>
OP void quads(const uint8_t* q, I& even, I& odd) {
  const I sign = SIGNED ? _mm256_set1_epi8(-128) : _mm256_setzero_si256();
  if constexpr (Q::bits == 8) {
    even = _mm256_xor_si256(loadi(q + 128 * J), sign);
    odd = _mm256_xor_si256(loadi(q + 128 * J + 64), sign);
    return;
  }
  constexpr int pair = 4 * (J % 2);  // of the 2-bit fields of a line
  if constexpr (Q::bits >= 4) {
    const I line = loadi(q + 64 * J);
    even = masked(line, 15);
    odd = masked(move_bits<4, 0>(line), 15);
  } else if constexpr (Q::bits >= 2) {
    const I line = loadi(q + 64 * (J / 2));
    even = masked(move_bits<pair, 0>(line), 3);
    odd = masked(move_bits<pair + 2, 0>(line), 3);
  } else {
    const I line = loadi(q);
    even = masked(move_bits<2 * J, 0>(line), 1);
    odd = masked(move_bits<2 * J + 1, 0>(line), 1);
  }
  if constexpr (Q::bits == 5 || Q::bits == 3) {
    constexpr int top = Q::bits - 1;
    const I h = loadi(q + (Q::bits == 5 ? 256 : 128));
    even = merge(even, move_bits<2 * J, top>(h), 1 << top);
    odd = merge(odd, move_bits<2 * J + 1, top>(h), 1 << top);
  }
  if constexpr (Q::bits == 6) {
    const I h = loadi(q + 256 + 64 * (J / 2));
    even = merge(even, move_bits<pair, 4>(h), 48);
    odd = merge(odd, move_bits<pair + 2, 4>(h), 48);
  }
  if constexpr (Q::lookup) {
    const I table = _mm256_broadcastsi128_si256(load16(Q::table));
    even = _mm256_shuffle_epi8(table, even);
    odd = _mm256_shuffle_epi8(table, odd);
    if constexpr (Q::range == 8) even = _mm256_xor_si256(even, sign), odd = _mm256_xor_si256(odd, sign);
  }
}

OP I broadcast4(const int8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

template <int RANGE>
OP I pairs(I quant, I x) {
  if constexpr (RANGE == 8) return _mm256_maddubs_epi16(_mm256_abs_epi8(quant), _mm256_sign_epi8(x, quant));
  return _mm256_maddubs_epi16(quant, x);
}

// Fixes when a sum is made. GCC makes all products of a block before it adds them up, in an order of its own: more values
// than there are registers, and storing them took a third of the time.
OP void pin(I& sum) { __asm__ volatile("" : "+x"(sum)); }

// Pair sums that are added in 16 bits before they are widened. The largest is 15, 31, 63 or 128 (7 bits: 127) times
// 2 x 127; of the first 8, 4, 2 fit. Halves are 4 pairs.
template <class Q>
constexpr int fitting() {
  if constexpr (Q::range <= 4 && !Q::halves) return 8;
  return Q::range <= 5 ? 4 : Q::range == 6 ? 2 : 1;
}

#if defined(LLMRUN_BUILD_AVXVNNI)
template <class Q, int J, int T, int P>
OP void step(const uint8_t* q, const XBlock* x, I (&)[P][T], I acc[P][T]) {
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    I even, odd;
    quads<Q, J>(q + 32 * p, even, odd);
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) {
      acc[p][m] = _mm256_dpbusd_avx_epi32(acc[p][m], even, broadcast4(x[m].q + 8 * J));
      acc[p][m] = _mm256_dpbusd_avx_epi32(acc[p][m], odd, broadcast4(x[m].q + 8 * J + 4));
    }
  }
}
#else
template <class Q, int J, int T, int P>
OP void step(const uint8_t* q, const XBlock* x, I wide[P][T], I acc[P][T]) {
  constexpr int fit = fitting<Q>();
  constexpr int before = (2 * J) % fit, after = (2 * J + 1) % fit;
  const I ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    I even, odd;
    quads<Q, J>(q + 32 * p, even, odd);
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) {
      I v = pairs<Q::range>(even, broadcast4(x[m].q + 8 * J));
      wide[p][m] = before == 0 ? v : _mm256_add_epi16(wide[p][m], v);
      if constexpr (fit == 1) acc[p][m] = _mm256_add_epi32(acc[p][m], _mm256_madd_epi16(wide[p][m], ones));
      pin(fit == 1 ? acc[p][m] : wide[p][m]);
      v = pairs<Q::range>(odd, broadcast4(x[m].q + 8 * J + 4));
      wide[p][m] = after == 0 ? v : _mm256_add_epi16(wide[p][m], v);
      if constexpr (after == fit - 1) acc[p][m] = _mm256_add_epi32(acc[p][m], _mm256_madd_epi16(wide[p][m], ones));
      pin(after == fit - 1 ? acc[p][m] : wide[p][m]);
    }
  }
}

#endif

// Where a sum of unsigned quants starts: minus the offset of each times its activation.
template <class Q>
OP I start(int32_t minus) {
  if constexpr (Q::offset == 0 || (Q::range == 8 && !QUADS)) return _mm256_setzero_si256();
  return _mm256_mullo_epi32(_mm256_set1_epi32(minus), _mm256_set1_epi32(Q::offset));
}

template <class Q, int T, int P>
OP void dot(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  I wide[P][T];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) acc[p][m] = start<Q>(x[m].minus);
  step<Q, 0, T, P>(q, x, wide, acc);
  step<Q, 1, T, P>(q, x, wide, acc);
  step<Q, 2, T, P>(q, x, wide, acc);
  step<Q, 3, T, P>(q, x, wide, acc);
}

template <class Q, int T, int P>
OP void dot_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
  I wide[P][T];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) {
      low[p][m] = start<Q>(x[m].minus_low);
      up[p][m] = start<Q>(x[m].minus - x[m].minus_low);
    }
  step<Q, 0, T, P>(q, x, wide, low);
  step<Q, 1, T, P>(q, x, wide, low);
  step<Q, 2, T, P>(q, x, wide, up);
  step<Q, 3, T, P>(q, x, wide, up);
}

// 16-bit activations: a quad of words is stored as k 0, 2, 1, 3, because the bytes of a quad of quants become words by
// taking the even and the odd ones. The first XBlock of a row's two holds k 0..15, the second the others.
template <class Q>
constexpr bool plain_nibbles() {
  return Q::bits == 4 && !Q::lookup;
}

// Words I of 8 rows' quads 2J and 2J+1, from these quads or, plain nibbles, from their line in `even`.
template <class Q, int I_>
OP I quad_word(I even, I odd) {
  const I low = _mm256_set1_epi16(plain_nibbles<Q>() ? 15 : 0xff);
  if constexpr (I_ == 0) return _mm256_and_si256(even, low);
  if constexpr (plain_nibbles<Q>()) {
    if constexpr (I_ == 3) return _mm256_srli_epi16(even, 12);
    return _mm256_and_si256(_mm256_srli_epi16(even, I_ == 1 ? 8 : 4), low);
  }
  if constexpr (I_ == 2) return _mm256_and_si256(odd, low);
  return _mm256_srli_epi16(I_ == 1 ? even : odd, 8);
}

template <class Q, int J, int I_, int T, int P>
OP void step_word(const I even[P], const I odd[P], const XBlock* x, I acc[P][T]) {
  I words[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    words[p] = quad_word<Q, I_>(even[p], odd[p]);
    pin(words[p]);
  }
#pragma GCC unroll 8
  for (int m = 0; m < T; ++m) {
    const I pair = broadcast4(x[2 * m + J / 2].q + 16 * (J % 2) + 4 * I_);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      acc[p][m] = _mm256_add_epi32(acc[p][m], _mm256_madd_epi16(words[p], pair));
      pin(acc[p][m]);
    }
  }
}

template <class Q, int J, int T, int P>
OP void step_words(const uint8_t* q, const XBlock* x, I acc[P][T]) {
  I even[P], odd[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    if constexpr (plain_nibbles<Q>())
      even[p] = odd[p] = loadi(q + 32 * p + 64 * J);
    else
      quads<Q, J, false>(q + 32 * p, even[p], odd[p]);
  }
  step_word<Q, J, 0, T, P>(even, odd, x, acc);
  step_word<Q, J, 1, T, P>(even, odd, x, acc);
  step_word<Q, J, 2, T, P>(even, odd, x, acc);
  step_word<Q, J, 3, T, P>(even, odd, x, acc);
}

template <class Q>
OP I start_words(int32_t minus) {
  if constexpr (Q::offset == 0) return _mm256_setzero_si256();
  return _mm256_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(minus) * static_cast<uint32_t>(Q::offset)));
}

// acc[p][m] = sum over the block of value * x, x in words.
template <class Q, int T, int P>
OP void dot_words(const uint8_t* q, const XBlock* x, I acc[P][T]) {
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) acc[p][m] = start_words<Q>(x[2 * m].minus);
  step_words<Q, 0, T, P>(q, x, acc);
  step_words<Q, 1, T, P>(q, x, acc);
  step_words<Q, 2, T, P>(q, x, acc);
  step_words<Q, 3, T, P>(q, x, acc);
}

template <class Q, int T, int P>
OP void dot_words_halves(const uint8_t* q, const XBlock* x, I low[P][T], I up[P][T]) {
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) {
      low[p][m] = start_words<Q>(x[2 * m].minus_low);
      up[p][m] = start_words<Q>(x[2 * m + 1].minus_low);
    }
  step_words<Q, 0, T, P>(q, x, low);
  step_words<Q, 1, T, P>(q, x, low);
  step_words<Q, 2, T, P>(q, x, up);
  step_words<Q, 3, T, P>(q, x, up);
}

// One row alone has byte planes instead (x = 256 high + low), made from the words before its products: quants stay bytes,
// so less is unpacked, and 16 of them are multiplied where words do 8. Larger quants would fill 16 bits with one pair.
template <class Q>
constexpr bool splits() {
  return Q::range <= 6;
}

// Words as planes: out[0].q high, out[1].q low, in -128..127, both in the order of k. The rest stays as it was.
OP void split_words(const XBlock* x, XBlock* out) {
  const I order = _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12,
                                   14, 13, 15);
  I high[2], low[2];
  for (int half = 0; half < 2; ++half) {
    const I words = loadi(reinterpret_cast<const uint8_t*>(x[half].q));
    high[half] = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
    low[half] = _mm256_sub_epi16(words, _mm256_slli_epi16(high[half], 8));
  }
  const I planes[2] = {_mm256_packs_epi16(high[0], high[1]), _mm256_packs_epi16(low[0], low[1])};
  for (int i = 0; i < 2; ++i) {
    out[i] = x[i];
    const I plane = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(planes[i], 0xd8), order);
    _mm256_storeu_si256(reinterpret_cast<I*>(out[i].q), plane);
  }
}

template <class Q, int J, int P>
OP void step_split(const uint8_t* q, const XBlock* x, I wide[P][2], I acc[P][1]) {
  constexpr int fit = fitting<Q>();  // a low byte of -128 fits as well: 15 x 128 x 2 x 8 pairs, 31 x 4, 63 x 2
  constexpr bool first = (2 * J) % fit == 0, last = (2 * J + 1) % fit == fit - 1;
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    I even, odd;
    quads<Q, J, false>(q + 32 * p, even, odd);
#pragma GCC unroll 2
    for (int plane = 0; plane < 2; ++plane) {
      const I a = _mm256_maddubs_epi16(even, broadcast4(x[plane].q + 8 * J));
      const I b = _mm256_maddubs_epi16(odd, broadcast4(x[plane].q + 8 * J + 4));
      wide[p][plane] = first ? _mm256_add_epi16(a, b) : _mm256_add_epi16(_mm256_add_epi16(wide[p][plane], a), b);
      pin(wide[p][plane]);
      const I weight = _mm256_set1_epi16(plane == 0 ? 256 : 1);
      if constexpr (last) acc[p][0] = _mm256_add_epi32(acc[p][0], _mm256_madd_epi16(wide[p][plane], weight));
    }
  }
}

// acc[p][0] = sum over the block of value * x, x in planes; the same integers as dot_words.
template <class Q, int P>
OP void dot_split(const uint8_t* q, const XBlock* x, I acc[P][1]) {
  I wide[P][2];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) acc[p][0] = start_words<Q>(x->minus);
  step_split<Q, 0, P>(q, x, wide, acc);
  step_split<Q, 1, P>(q, x, wide, acc);
  step_split<Q, 2, P>(q, x, wide, acc);
  step_split<Q, 3, P>(q, x, wide, acc);
}

template <class Q, int P>
OP void dot_split_halves(const uint8_t* q, const XBlock* x, I low[P][1], I up[P][1]) {
  I wide[P][2];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    low[p][0] = start_words<Q>(x[0].minus_low);
    up[p][0] = start_words<Q>(x[1].minus_low);
  }
  step_split<Q, 0, P>(q, x, wide, low);
  step_split<Q, 1, P>(q, x, wide, low);
  step_split<Q, 2, P>(q, x, wide, up);
  step_split<Q, 3, P>(q, x, wide, up);
}

// 16 whole numbers as words, each quad in the order above.
OP void store_words(int8_t* p, F a, F b) {
  const I packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
  const I ordered = _mm256_permute4x64_epi64(packed, 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(ordered, 0xd8), 0xd8));
}

OP int sum_i32(I v) {
  __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

// 255 high + low, the sums of the two planes of 16-bit activations.
OP I join_planes(I high, I low) {
  return _mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(high, 8), high), low);
}
OP void store_i8(int8_t* p, F v) {
  const I q = _mm256_cvtps_epi32(v);
  const __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(w, w));
}

OP void quantize_block(const float* x, XBlock* out) {
  const F clear = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  F v[4], most = zero();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = load(x + 8 * i);
    most = maxf(most, _mm256_and_ps(v[i], clear));
  }
  const float top = hmax(most);
  const float inverse = top >= LEAST_ACTIVATION ? 127.0f / top : 0.0f;
  I q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(mul(v[i], set1(inverse)));
  const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const I packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->q), _mm256_permutevar8x32_epi32(packed, order));
  out->d = top * (1.0f / 127.0f);
  set_sums(out, sum_i32(_mm256_add_epi32(q[0], q[1])), sum_i32(_mm256_add_epi32(q[2], q[3])));
}

}  // namespace llmrun::LLMRUN_BUILD
