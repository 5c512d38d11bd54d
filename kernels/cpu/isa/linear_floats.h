// Matrix products with float weights, widened to f32. Included by linear.cpp, inside its namespaces.
//
// Every output is one chain over k whatever tile it falls in, so tiles of any shape give the same bits.

template <int TYPE>
OP F load_weight(const uint8_t* w, int64_t index) {
  if constexpr (TYPE == LLMRUN_F32) return load(reinterpret_cast<const float*>(w) + index);
  if constexpr (TYPE == LLMRUN_F16) return load_half(reinterpret_cast<const uint16_t*>(w) + index);
  return load_bfloat(reinterpret_cast<const uint16_t*>(w) + index);
}

// T rows x G groups of float weights; out [G][T][GROUP].
template <int TYPE, int T, int G>
void tile_float(const Matrix& matrix, const uint8_t* w, const float* x, float* out) {
  for (int part = 0; part < PARTS; ++part) {
    F acc[G][T];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int m = 0; m < T; ++m) acc[g][m] = zero();
    for (int64_t k = 0; k < matrix.cols; ++k) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const F weight = load_weight<TYPE>(w + g * matrix.group_bytes, k * GROUP + part * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < T; ++m) acc[g][m] = fma(set1(x[m * matrix.cols + k]), weight, acc[g][m]);
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int m = 0; m < T; ++m) store(out + (g * T + m) * GROUP + part * LANES, acc[g][m]);
  }
}

// The same for 8-bit floats: summed inside each block of 32 * PERIOD columns, the scale of the block put on last.
template <int PERIOD, int T, int G>
void tile_byte_float(const Matrix& matrix, const uint8_t* w, const float* x, float* out) {
  constexpr int64_t width = PERIOD * BLOCK, block_bytes = GROUP * (4 + width);
  for (int part = 0; part < PARTS; ++part) {
    F acc[G][T];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int m = 0; m < T; ++m) acc[g][m] = zero();
    for (int64_t b = 0; b < matrix.cols / width; ++b) {
      const uint8_t* block = w + b * block_bytes;
      F sum[G][T];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
        for (int m = 0; m < T; ++m) sum[g][m] = zero();
      for (int64_t k = 0; k < width; ++k) {
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const F weight = load_signed_byte_float(block + g * matrix.group_bytes + GROUP * (4 + k) + part * LANES);
#pragma GCC unroll 8
          for (int m = 0; m < T; ++m) sum[g][m] = fma(set1(x[m * matrix.cols + b * width + k]), weight, sum[g][m]);
        }
      }
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const float* scales = reinterpret_cast<const float*>(block + g * matrix.group_bytes) + part * LANES;
        const F scale = mul(set1(256.0f), load(scales));
#pragma GCC unroll 8
        for (int m = 0; m < T; ++m) acc[g][m] = fma(scale, sum[g][m], acc[g][m]);
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int m = 0; m < T; ++m) store(out + (g * T + m) * GROUP + part * LANES, acc[g][m]);
  }
}

// Either of the two.
template <int TYPE, int T, int G>
void any_tile_float(const Matrix& matrix, const uint8_t* w, const float* x, float* out) {
  if constexpr (TYPE == LLMRUN_F8_32)
    tile_byte_float<1, T, G>(matrix, w, x, out);
  else if constexpr (TYPE == LLMRUN_F8_128)
    tile_byte_float<4, T, G>(matrix, w, x, out);
  else
    tile_float<TYPE, T, G>(matrix, w, x, out);
}

// Groups that T rows take at once: sums, an element of each row and a weight fit the registers.
constexpr int float_groups(int rows) {
  const int groups = 5 * FLOAT_GROUPS / (2 * rows) - 1;
  return groups < 1 || rows == FLOAT_TILE ? 1 : groups < FLOAT_GROUPS ? groups : FLOAT_GROUPS;
}

// T rows: a weight is read and widened once for all of them, and with several groups no sum waits for itself.
template <int TYPE, int T>
void run_float_rows(const Matrix& matrix, const float* x, int64_t row, int64_t from, int64_t to) {
  constexpr int G = float_groups(T);
  alignas(64) float results[G * T * GROUP];
  const float* own = x + row * matrix.cols;
  int64_t g = from;
  for (; g + G <= to; g += G) {
    any_tile_float<TYPE, T, G>(matrix, matrix.data + g * matrix.group_bytes, own, results);
    for (int i = 0; i < G; ++i) write_tile(matrix, results + i * T * GROUP, row, T, g + i);
  }
  for (; G > 1 && g < to; ++g) {
    any_tile_float<TYPE, T, 1>(matrix, matrix.data + g * matrix.group_bytes, own, results);
    write_tile(matrix, results, row, T, g);
  }
}

// 1 < rows <= T: what verifying a few drafts takes.
template <int TYPE, int T>
void run_some_floats(const Matrix& matrix, const float* x, int64_t row, int64_t rows, int64_t from, int64_t to) {
  if constexpr (T > 1) {
    if (rows == T) return run_float_rows<TYPE, T>(matrix, x, row, from, to);
    run_some_floats<TYPE, T - 1>(matrix, x, row, rows, from, to);
  }
}

template <int TYPE>
void run_float(const Matrix& matrix, const float* x, int64_t row, int64_t end, int64_t from, int64_t to) {
  alignas(64) float results[FLOAT_GROUPS * GROUP];
  for (; row + FLOAT_TILE <= end; row += FLOAT_TILE) run_float_rows<TYPE, FLOAT_TILE>(matrix, x, row, from, to);
  if (end - row > 1) return run_some_floats<TYPE, FLOAT_TILE - 1>(matrix, x, row, end - row, from, to);
  for (; row < end; ++row) {
    int64_t g = from;
    for (; g + FLOAT_GROUPS <= to; g += FLOAT_GROUPS) {
      any_tile_float<TYPE, 1, FLOAT_GROUPS>(matrix, matrix.data + g * matrix.group_bytes, x + row * matrix.cols, results);
      for (int i = 0; i < FLOAT_GROUPS; ++i) write_tile(matrix, results + i * GROUP, row, 1, g + i);
    }
    for (; g < to; ++g) {
      any_tile_float<TYPE, 1, 1>(matrix, matrix.data + g * matrix.group_bytes, x + row * matrix.cols, results);
      write_tile(matrix, results, row, 1, g);
    }
  }
}
