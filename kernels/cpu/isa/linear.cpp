// Matrix products of a build: packed weights x quantised activations, or x f32 activations for float weights.
//
// Every output is accumulated over k in blocks of 32, in order, in one f32 lane; rows only share weight reads. So its
// value does not depend on the other rows, the tile it falls in or the thread (the `exact` contract).
#include <string.h>

#include "simd.h"
#if defined(LLMRUN_BUILD_AMX)
#include "tiles.h"
#endif

namespace llmrun::LLMRUN_BUILD {
namespace {

// Scale arithmetic of the types: `super` reads the head, `block` the scales of a 32-block.
struct Plain {  // f16 d[16]
  static constexpr bool minimum = false, halves = false;
  F d;
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) { d = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES); }
};

struct WithMinimum {  // f16 d[16], m[16]
  static constexpr bool minimum = true, halves = false;
  F d, m;
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES);
    m = load_half(reinterpret_cast<const uint16_t*>(s) + GROUP + part * LANES);
  }
};

struct SuperMinimum {  // head f16 d[16], dmin[16]; u8 s[16], m[16]; the minimum is subtracted
  static constexpr bool minimum = true, halves = false;
  F wide, wide_minimum, d, m;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    wide = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES);
    wide_minimum = sub(zero(), load_half(reinterpret_cast<const uint16_t*>(s) + GROUP + part * LANES));
  }
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = mul(wide, load_u8(s + part * LANES));
    m = mul(wide_minimum, load_u8(s + GROUP + part * LANES));
  }
};

struct SuperHalves {  // head f16 d[16]; i8 s[2][16]
  static constexpr bool minimum = false, halves = true;
  F wide, d, d_up;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    wide = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES);
  }
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = mul(wide, load_i8(s + part * LANES));
    d_up = mul(wide, load_i8(s + GROUP + part * LANES));
  }
};

struct SuperHalvesMinimum {  // head f16 d[16], dmin[16]; u8 s[2][16]: scale in the low nibble, minimum (subtracted) in the high
  static constexpr bool minimum = true, halves = true;
  F wide, wide_minimum, d, d_up, m, m_up;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    wide = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES);
    wide_minimum = sub(zero(), load_half(reinterpret_cast<const uint16_t*>(s) + GROUP + part * LANES));
  }
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = mul(wide, load_low4(s + part * LANES));
    d_up = mul(wide, load_low4(s + GROUP + part * LANES));
    m = mul(wide_minimum, load_high4(s + part * LANES));
    m_up = mul(wide_minimum, load_high4(s + GROUP + part * LANES));
  }
};

struct SuperOnly {  // head f16 d[16]
  static constexpr bool minimum = false, halves = false;
  F d;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) { d = load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES); }
  inline __attribute__((always_inline)) void block(const uint8_t*, int) {}
};

template <int EIGHTHS>
struct SuperScale {  // head f16 d[16]; i8 s[16], in EIGHTHS / 8 of d
  static constexpr bool minimum = false, halves = false;
  F wide, d;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    wide = mul(set1(EIGHTHS / 8.0f), load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES));
  }
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) { d = mul(wide, load_i8(s + part * LANES)); }
};

struct SuperNibbles {  // head f16 d[16]; u8 s[16]: d / 8 is scaled by 2 nibble + 1, the low nibble for k 0..15
  static constexpr bool minimum = false, halves = true;
  F wide, wide_twice, d, d_up;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    wide = mul(set1(0.125f), load_half(reinterpret_cast<const uint16_t*>(s) + part * LANES));
    wide_twice = add(wide, wide);
  }
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = fma(wide_twice, load_low4(s + part * LANES), wide);
    d_up = fma(wide_twice, load_high4(s + part * LANES), wide);
  }
};

struct Powers {  // u8 e[16]: 2^(e-128)
  static constexpr bool minimum = false, halves = false;
  F d;
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) { d = load_power(s + part * LANES); }
};

struct ByteFloats {  // u8 s[2][16]: half of a float of 4 exponent and 3 mantissa bits
  static constexpr bool minimum = false, halves = true;
  F d, d_up;
  inline __attribute__((always_inline)) void block(const uint8_t* s, int part) {
    d = load_byte_float(s + part * LANES);
    d_up = load_byte_float(s + GROUP + part * LANES);
  }
};

struct WideZero {  // head f32 d[16]; i8 zero[16]
  static constexpr bool minimum = true, halves = false;
  F d, m;
  inline __attribute__((always_inline)) void super(const uint8_t* s, int part) {
    d = load(reinterpret_cast<const float*>(s) + part * LANES);
    m = mul(sub(zero(), d), load_i8(s + 4 * GROUP + part * LANES));
  }
  inline __attribute__((always_inline)) void block(const uint8_t*, int) {}
};

// Quants of a packed 32-block (TypeInfo at compile time). `range`: bits of the largest unsigned value, table applied.
// `period`: 32-blocks a head serves.
template <int BITS, int OFFSET, int SCALES, int HEAD = 0, int PERIOD = 8>
struct Quants {
  static constexpr int bits = BITS, range = BITS, offset = OFFSET, scales = SCALES, bytes = SCALES + 64 * BITS;
  static constexpr int head_bytes = HEAD, period = PERIOD;
  static constexpr bool lookup = false;
  static constexpr const uint8_t* table = nullptr;
};

template <class Base, int RANGE, const uint8_t* TABLE>
struct Looked : Base {
  static constexpr int range = RANGE;
  static constexpr bool lookup = true;
  static constexpr const uint8_t* table = TABLE;
};

template <int TYPE>
struct Format;
template <> struct Format<LLMRUN_Q4_0> : Plain, Quants<4, 8, 32> {};
template <> struct Format<LLMRUN_Q4_1> : WithMinimum, Quants<4, 0, 64> {};
template <> struct Format<LLMRUN_Q5_0> : Plain, Quants<5, 16, 32> {};
template <> struct Format<LLMRUN_Q5_1> : WithMinimum, Quants<5, 0, 64> {};
template <> struct Format<LLMRUN_Q8_0> : Plain, Quants<8, 128, 32> {};
template <> struct Format<LLMRUN_Q1_0> : SuperOnly, Looked<Quants<1, 1, 0, 32, 4>, 2, SIGNS> {};
template <> struct Format<LLMRUN_Q2_0> : SuperOnly, Quants<2, 1, 0, 32, 2> {};
template <> struct Format<LLMRUN_Q2_K> : SuperHalvesMinimum, Quants<2, 0, 32, 64> {};
template <> struct Format<LLMRUN_Q3_K> : SuperHalves, Quants<3, 4, 32, 32> {};
template <> struct Format<LLMRUN_Q4_K> : SuperMinimum, Quants<4, 0, 32, 64> {};
template <> struct Format<LLMRUN_Q5_K> : SuperMinimum, Quants<5, 0, 32, 64> {};
template <> struct Format<LLMRUN_Q6_K> : SuperHalves, Quants<6, 32, 32, 32> {};
template <> struct Format<LLMRUN_IQ1_S> : SuperScale<1>, Looked<Quants<3, 16, 16, 32>, 5, SHIFTED_TRITS> {};
template <> struct Format<LLMRUN_IQ1_M> : SuperNibbles, Looked<Quants<3, 16, 16, 32>, 5, SHIFTED_TRITS> {};
template <> struct Format<LLMRUN_IQ2_XXS> : SuperScale<1>, Looked<Quants<3, 64, 16, 32>, 7, THREE_SIZES> {};
template <> struct Format<LLMRUN_IQ2_XS> : SuperNibbles, Looked<Quants<3, 64, 16, 32>, 7, THREE_SIZES> {};  // and IQ2_S
template <> struct Format<LLMRUN_IQ3_XXS> : SuperScale<2>, Looked<Quants<4, 64, 16, 32>, 7, EIGHT_SIZES> {};
template <> struct Format<LLMRUN_IQ3_S> : SuperScale<8>, Looked<Quants<4, 16, 16, 32>, 5, ODD_SIZES> {};
template <> struct Format<LLMRUN_IQ4_NL> : Plain, Looked<Quants<4, 128, 32>, 8, CURVE> {};
template <> struct Format<LLMRUN_IQ4_XS> : SuperScale<8>, Looked<Quants<4, 128, 16, 32>, 8, CURVE> {};
template <> struct Format<LLMRUN_MXFP4> : Powers, Looked<Quants<4, 16, 16>, 5, SMALL_FLOATS> {};
template <> struct Format<LLMRUN_NVFP4> : ByteFloats, Looked<Quants<4, 16, 32>, 5, SMALL_FLOATS> {};
template <> struct Format<LLMRUN_TQ2_0> : SuperOnly, Quants<2, 1, 0, 32> {};  // and TQ1_0
template <> struct Format<LLMRUN_I4_32> : WideZero, Quants<4, 0, 0, 80, 1> {};
template <> struct Format<LLMRUN_I4_128> : WideZero, Quants<4, 0, 0, 80, 4> {};
template <> struct Format<LLMRUN_I8_32> : WideZero, Quants<8, 128, 0, 80, 1> {};
template <> struct Format<LLMRUN_I8_128> : WideZero, Quants<8, 128, 0, 80, 4> {};

#if defined(LLMRUN_WORDS)
template <class Q, int T, int P>
OP void dot_fine(const uint8_t* quants, const XBlock* x, I sum[P][T]) {
  if constexpr (T == 1 && splits<Q>())
    dot_split<Q, P>(quants, x, sum);
  else
    dot_words<Q, T, P>(quants, x, sum);
}

template <class Q, int T, int P>
OP void dot_fine_halves(const uint8_t* quants, const XBlock* x, I low[P][T], I up[P][T]) {
  if constexpr (T == 1 && splits<Q>())
    dot_split_halves<Q, P>(quants, x, low, up);
  else
    dot_words_halves<Q, T, P>(quants, x, low, up);
}
#else
template <int T, int P>
OP void join(const I both[P][2 * T], I sum[P][T]) {
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) sum[p][m] = join_planes(both[p][2 * m], both[p][2 * m + 1]);
}

template <class Q, int T, int P>
OP void dot_fine(const uint8_t* quants, const XBlock* x, I sum[P][T]) {
  I both[P][2 * T];
  dot<Q, 2 * T, P>(quants, x, both);
  join<T, P>(both, sum);
}

template <class Q, int T, int P>
OP void dot_fine_halves(const uint8_t* quants, const XBlock* x, I low[P][T], I up[P][T]) {
  I both[P][2 * T], both_up[P][2 * T];
  dot_halves<Q, 2 * T, P>(quants, x, both, both_up);
  join<T, P>(both, low);
  join<T, P>(both_up, up);
}
#endif

// sum[p][m]: the integer sum of row m over the block.
template <class Q, int T, int P, int PLANES>
OP void whole_sums(const uint8_t* quants, const XBlock* x, I sum[P][T]) {
  if constexpr (PLANES == 1)
    dot<Q, T, P>(quants, x, sum);
  else
    dot_fine<Q, T, P>(quants, x, sum);
}

// The same for k 0..15 and 16..31 apart.
template <class Q, int T, int P, int PLANES>
OP void half_sums(const uint8_t* quants, const XBlock* x, I low[P][T], I up[P][T]) {
  if constexpr (PLANES == 1)
    dot_halves<Q, T, P>(quants, x, low, up);
  else
    dot_fine_halves<Q, T, P>(quants, x, low, up);
}

template <class Q, int T, int PLANES>
OP void accumulate(const Q& scale, const XBlock* x, const I* sum, F* acc) {
#pragma GCC unroll 8
  for (int m = 0; m < T; ++m) {
    const XBlock& row = x[m * PLANES];
    F value;
    if constexpr (Q::minimum)
      value = fma(scale.d, to_float(sum[m]), mul(scale.m, set1(row.sum)));
    else
      value = mul(scale.d, to_float(sum[m]));
    acc[m] = fma(set1(row.d), value, acc[m]);
  }
}

// Sum of the first 16 quants of a row's block, its planes joined; exact in f32.
template <int PLANES>
OP float low_half_sum(const XBlock* x) {
  if constexpr (PLANES == 2 && !WORDS) return -static_cast<float>(PLANE * x[0].minus_low + x[1].minus_low);
  return -static_cast<float>(x[0].minus_low);
}

template <class Q, int T, int PLANES>
OP void accumulate_halves(const Q& scale, const XBlock* x, const I* low, const I* up, F* acc) {
#pragma GCC unroll 8
  for (int m = 0; m < T; ++m) {
    F value = fma(scale.d_up, to_float(up[m]), mul(scale.d, to_float(low[m])));
    if constexpr (Q::minimum) {
      const float low_sum = low_half_sum<PLANES>(x + m * PLANES);
      value = fma(scale.m_up, set1(x[m * PLANES].sum - low_sum), fma(scale.m, set1(low_sum), value));
    }
    acc[m] = fma(set1(x[m * PLANES].d), value, acc[m]);
  }
}

// Few rows wait for memory, whose own prefetching does not keep up with weights that are also computed on. The address
// may lie behind the matrix: a prefetch never faults.
constexpr int AHEAD_ROWS = 2;
constexpr int64_t AHEAD_BYTES = 2048;

template <class Q>
OP void prefetch_block(const uint8_t* at) {
#pragma GCC unroll 10
  for (int line = 0; line * 64 < Q::bytes; ++line) __builtin_prefetch(at + 64 * line);
}

// T rows x P parts (LANES outputs each) of one group; out [T][GROUP].
template <class Q, int T, int P, int PLANES>
OP void tile(const uint8_t* w, const XBlock* x, int64_t blocks, int part, float* out) {
  F acc[P][T];
  Q scale[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) acc[p][m] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    if constexpr (T <= AHEAD_ROWS) prefetch_block<Q>(w + AHEAD_BYTES);
    if constexpr (Q::head_bytes > 0) {
      if (b % Q::period == 0) {
        for (int p = 0; p < P; ++p) scale[p].super(w, part + p);
        w += Q::head_bytes;
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) scale[p].block(w, part + p);
    const uint8_t* quants = w + Q::scales + part * LANES * 4;
    I sum[P][T];
    if constexpr (Q::halves) {
      I up[P][T];
      half_sums<Q, T, P, PLANES>(quants, x, sum, up);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) accumulate_halves<Q, T, PLANES>(scale[p], x, sum[p], up[p], acc[p]);
    } else {
      whole_sums<Q, T, P, PLANES>(quants, x, sum);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) accumulate<Q, T, PLANES>(scale[p], x, sum[p], acc[p]);
    }
    w += Q::bytes;
    x += T * PLANES;
  }
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int m = 0; m < T; ++m) store(out + m * GROUP + (part + p) * LANES, acc[p][m]);
}

using TileKernel = void (*)(const uint8_t*, const XBlock*, int64_t, float*);

template <int TYPE, int T, int PLANES>
void group(const uint8_t* w, const XBlock* x, int64_t blocks, float* out) {
  if constexpr (T == 1 || (WORDS && PLANES == 2)) {  // words: parts share the loads of activations
    tile<Format<TYPE>, T, PARTS, PLANES>(w, x, blocks, 0, out);
  } else {
    for (int part = 0; part < PARTS; ++part) tile<Format<TYPE>, T, 1, PLANES>(w, x, blocks, part, out);
  }
}

// Most rows of a vector tile.
template <int PLANES>
constexpr int vector_rows() {
#if defined(LLMRUN_BUILD_AMX)
  return VECTOR_ROWS;
#else
  return PLANES == 1 ? TILE : FINE_TILE;
#endif
}

template <int TYPE, int PLANES>
TileKernel tile_kernel(int rows) {
  constexpr int most = vector_rows<PLANES>();
  switch (rows) {
    case 1: return group<TYPE, 1, PLANES>;
    case 2: return group<TYPE, 2, PLANES>;
    default: break;
  }
  if constexpr (most > 2) {
    if (rows == 3) return group<TYPE, 3, PLANES>;
    if (rows == 4) return group<TYPE, 4, PLANES>;
  }
  if constexpr (most > 4) {
    if (rows == 5) return group<TYPE, 5, PLANES>;
    if (rows == 6) return group<TYPE, 6, PLANES>;
  }
  if constexpr (most > 6) {
    if (rows == 7) return group<TYPE, 7, PLANES>;
    if (rows == 8) return group<TYPE, 8, PLANES>;
  }
  return nullptr;
}

template <int TYPE>
struct TypeTag {
  static constexpr int value = TYPE;
};

// call(TypeTag<T>()) with the T whose Format a quantised type has.
template <class Call>
auto with_type(int64_t type, Call call) {
  switch (type) {
    case LLMRUN_Q4_0: return call(TypeTag<LLMRUN_Q4_0>());
    case LLMRUN_Q4_1: return call(TypeTag<LLMRUN_Q4_1>());
    case LLMRUN_Q5_0: return call(TypeTag<LLMRUN_Q5_0>());
    case LLMRUN_Q5_1: return call(TypeTag<LLMRUN_Q5_1>());
    case LLMRUN_Q8_0: return call(TypeTag<LLMRUN_Q8_0>());
    case LLMRUN_Q1_0: return call(TypeTag<LLMRUN_Q1_0>());
    case LLMRUN_Q2_0: return call(TypeTag<LLMRUN_Q2_0>());
    case LLMRUN_Q2_K: return call(TypeTag<LLMRUN_Q2_K>());
    case LLMRUN_Q3_K: return call(TypeTag<LLMRUN_Q3_K>());
    case LLMRUN_Q4_K: return call(TypeTag<LLMRUN_Q4_K>());
    case LLMRUN_Q5_K: return call(TypeTag<LLMRUN_Q5_K>());
    case LLMRUN_IQ1_S: return call(TypeTag<LLMRUN_IQ1_S>());
    case LLMRUN_IQ1_M: return call(TypeTag<LLMRUN_IQ1_M>());
    case LLMRUN_IQ2_XXS: return call(TypeTag<LLMRUN_IQ2_XXS>());
    case LLMRUN_IQ2_XS: case LLMRUN_IQ2_S: return call(TypeTag<LLMRUN_IQ2_XS>());
    case LLMRUN_IQ3_XXS: return call(TypeTag<LLMRUN_IQ3_XXS>());
    case LLMRUN_IQ3_S: return call(TypeTag<LLMRUN_IQ3_S>());
    case LLMRUN_IQ4_NL: return call(TypeTag<LLMRUN_IQ4_NL>());
    case LLMRUN_IQ4_XS: return call(TypeTag<LLMRUN_IQ4_XS>());
    case LLMRUN_MXFP4: return call(TypeTag<LLMRUN_MXFP4>());
    case LLMRUN_NVFP4: return call(TypeTag<LLMRUN_NVFP4>());
    case LLMRUN_TQ1_0: case LLMRUN_TQ2_0: return call(TypeTag<LLMRUN_TQ2_0>());
    case LLMRUN_I4_32: return call(TypeTag<LLMRUN_I4_32>());
    case LLMRUN_I4_128: return call(TypeTag<LLMRUN_I4_128>());
    case LLMRUN_I8_32: return call(TypeTag<LLMRUN_I8_32>());
    case LLMRUN_I8_128: return call(TypeTag<LLMRUN_I8_128>());
    default: return call(TypeTag<LLMRUN_Q6_K>());
  }
}

template <int PLANES>
TileKernel kernel_for(int64_t type, int rows) {
  return with_type(type, [=](auto tag) { return tile_kernel<decltype(tag)::value, PLANES>(rows); });
}

// Whether a row alone is multiplied as byte planes although activations are words.
bool splits_alone(int64_t type) {
#if defined(LLMRUN_WORDS)
  return with_type(type, [](auto tag) { return splits<Format<decltype(tag)::value>>(); });
#else
  return (void)type, false;
#endif
}

// Quantised activations of all rows of the op. `alone`: the blocks of a last row that is a tile of its own, as planes; or 0.
struct Activations {
  const XBlock* x;
  int64_t rows;
  const XBlock* alone;
};

// One matrix of the op, and the rows of x this job works on.
struct Matrix {
  int64_t type, rows, cols, group_bytes;
  const uint8_t* data;
  float* out;
  const float* bias;
  bool add;
};

// Writes `count` rows of 16 results (stride GROUP) to out[row..][16 g ..], with bias and residual.
void write_tile(const Matrix& matrix, const float* tile, int64_t row, int count, int64_t group) {
  const int64_t column = group * GROUP;
  const int64_t left = matrix.rows - column;
  for (int m = 0; m < count; ++m) {
    float* out = matrix.out + (row + m) * matrix.rows + column;
    for (int part = 0; part < PARTS; ++part) {
      const int n = static_cast<int>(left - part * LANES);
      if (n <= 0) break;
      F value = load(tile + m * GROUP + part * LANES);
      if (matrix.bias) value = add(value, load_n(matrix.bias + column + part * LANES, n));
      if (matrix.add) value = add(value, load_n(out + part * LANES, n));
      store_n(out + part * LANES, value, n);
    }
  }
}

#if defined(LLMRUN_BUILD_AMX)
#include "linear_tiles.h"
#endif

template <int PLANES>
void run_quantized(const Matrix& matrix, const Activations& input, int64_t row, int64_t end, int64_t from, int64_t to) {
  constexpr int most = PLANES == 1 ? TILE : FINE_TILE;
  const int64_t blocks = matrix.cols / BLOCK;
  alignas(64) float results[most * GROUP];
#if defined(LLMRUN_BUILD_AMX)
  row = run_tiles<PLANES>(matrix, input.x, row, end, from, to);
#endif
  for (; row < end; row += most) {
    const int count = static_cast<int>(input.rows - row < most ? input.rows - row : most);
    const bool alone = PLANES == 2 && count == 1 && splits_alone(matrix.type);
    const XBlock* x = alone ? input.alone : input.x + row * blocks * PLANES;
    const TileKernel kernel = kernel_for<PLANES>(matrix.type, count);
    for (int64_t g = from; g < to; ++g) {
      kernel(matrix.data + g * matrix.group_bytes, x, blocks, results);
      write_tile(matrix, results, row, count, g);
    }
  }
}

#include "linear_floats.h"

void run_matrix(const Job& job, const Matrix& matrix, int64_t row, int64_t end, int64_t from, int64_t to) {
  const LlmrunOp& op = *job.op;
  const float* x = static_cast<const float*>(op.p[0]);
  switch (matrix.type) {
    case LLMRUN_F32: return run_float<LLMRUN_F32>(matrix, x, row, end, from, to);
    case LLMRUN_F16: return run_float<LLMRUN_F16>(matrix, x, row, end, from, to);
    case LLMRUN_BF16: return run_float<LLMRUN_BF16>(matrix, x, row, end, from, to);
    case LLMRUN_F8_32: return run_float<LLMRUN_F8_32>(matrix, x, row, end, from, to);
    case LLMRUN_F8_128: return run_float<LLMRUN_F8_128>(matrix, x, row, end, from, to);
    default: break;
  }
  const Activations blocks = {static_cast<const XBlock*>(op.p[1]), op.n[0], reinterpret_cast<const XBlock*>(job.scratch)};
  if (op.flags & FINE)
    run_quantized<2>(matrix, blocks, row, end, from, to);
  else
    run_quantized<1>(matrix, blocks, row, end, from, to);
}

// Groups [from, to) of all matrices of the op, counted through, for rows [row, end).
void run_groups(const Job& job, int64_t row, int64_t end, int64_t from, int64_t to) {
  const LlmrunOp& op = *job.op;
  int64_t first = 0;
  for (int64_t i = 0; i < op.n[2]; ++i) {
    const int64_t rows = op.n[3 + 2 * i], groups = groups_of(rows);
    const int64_t a = from > first ? from - first : 0, b = to - first < groups ? to - first : groups;
    if (a < b) {
      const int64_t type = op.n[4 + 2 * i];
      const Matrix matrix = {type, rows, op.n[1], group_bytes(*type_info(type), op.n[1]),
                             static_cast<const uint8_t*>(op.p[2 + 3 * i]), static_cast<float*>(op.p[3 + 3 * i]),
                             static_cast<const float*>(op.p[4 + 3 * i]), (op.flags & ADD_TO_OUT) != 0};
      run_matrix(job, matrix, row, end, a, b);
    }
    first += groups;
  }
}

// Leaves a last row that is a tile of its own as planes in the job's scratch.
void split_last(const Job& job) {
#if defined(LLMRUN_WORDS)
  const LlmrunOp& op = *job.op;
  const int64_t rows = op.n[0], blocks = op.n[1] / BLOCK;
  bool needed = false;
  for (int64_t i = 0; i < op.n[2]; ++i) needed |= !takes_floats(op.n[4 + 2 * i]) && splits_alone(op.n[4 + 2 * i]);
  if (!needed || !(op.flags & FINE) || rows % FINE_TILE != 1) return;
  const XBlock* x = static_cast<const XBlock*>(op.p[1]) + (rows - 1) * blocks * 2;
  for (int64_t b = 0; b < blocks; ++b) split_words(x + 2 * b, reinterpret_cast<XBlock*>(job.scratch) + 2 * b);
#else
  (void)job;
#endif
}

}  // namespace

// Unit u is group u % G of row panel u / G, G being the groups of all matrices (n[12]) and n[11] the rows of a panel.
void linear(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t rows = op.n[0], panel_rows = op.n[11], groups = op.n[12];
  split_last(job);
  for (int64_t unit = job.begin; unit < job.end;) {
    const int64_t panel = unit / groups, from = unit % groups;
    const int64_t to = job.end - panel * groups < groups ? job.end - panel * groups : groups;
    const int64_t row = panel * panel_rows;
    const int64_t end = row + panel_rows < rows ? row + panel_rows : rows;
    run_groups(job, row, end, from, to);
    unit = panel * groups + to;
  }
}

}  // namespace llmrun::LLMRUN_BUILD
