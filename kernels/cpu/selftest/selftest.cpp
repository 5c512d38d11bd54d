// Compares every build this machine can run with the generic one, op by op, on random data through the C interface. For
// machines without Python: a cross build run under an emulator. Prints a line for each op and build; exit 1 on a mismatch.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../abi.h"

namespace {

using Floats = std::vector<float>;

std::mt19937 generator(7);

Floats random_floats(size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A storage type, and where in a file block random bytes must become a small scale.
struct Stored {
  int type, bytes;
  int halves[2];  // offsets of f16 fields, or of the upper half of an f32, -1: none
  int grid_points, grid_values;
};

const Stored STORED[] = {
    {LLMRUN_F32, 4, {-1, -1}, 0, 0},       {LLMRUN_F16, 2, {-1, -1}, 0, 0},     {LLMRUN_BF16, 2, {-1, -1}, 0, 0},
    {LLMRUN_Q8_0, 34, {0, -1}, 0, 0},      {LLMRUN_Q4_0, 18, {0, -1}, 0, 0},    {LLMRUN_Q4_1, 20, {0, 2}, 0, 0},
    {LLMRUN_Q5_0, 22, {0, -1}, 0, 0},      {LLMRUN_Q5_1, 24, {0, 2}, 0, 0},     {LLMRUN_Q1_0, 18, {0, -1}, 0, 0},
    {LLMRUN_Q2_0, 18, {0, -1}, 0, 0},      {LLMRUN_Q2_K, 84, {80, 82}, 0, 0},   {LLMRUN_Q3_K, 110, {108, -1}, 0, 0},
    {LLMRUN_Q4_K, 144, {0, 2}, 0, 0},      {LLMRUN_Q5_K, 176, {0, 2}, 0, 0},    {LLMRUN_Q6_K, 210, {208, -1}, 0, 0},
    {LLMRUN_IQ1_S, 50, {0, -1}, 2048, 8},  {LLMRUN_IQ1_M, 56, {-1, -1}, 2048, 8}, {LLMRUN_IQ2_XXS, 66, {0, -1}, 256, 8},
    {LLMRUN_IQ2_XS, 74, {0, -1}, 512, 8},  {LLMRUN_IQ2_S, 82, {0, -1}, 1024, 8}, {LLMRUN_IQ3_XXS, 98, {0, -1}, 256, 4},
    {LLMRUN_IQ3_S, 110, {0, -1}, 512, 4},  {LLMRUN_IQ4_NL, 18, {0, -1}, 0, 0},  {LLMRUN_IQ4_XS, 136, {0, -1}, 0, 0},
    {LLMRUN_MXFP4, 17, {-1, -1}, 0, 0},    {LLMRUN_NVFP4, 36, {-1, -1}, 0, 0},  {LLMRUN_TQ1_0, 54, {52, -1}, 0, 0},
    {LLMRUN_TQ2_0, 66, {64, -1}, 0, 0},    {LLMRUN_I4_32, 21, {2, -1}, 0, 0},   {LLMRUN_I4_128, 69, {2, -1}, 0, 0},
    {LLMRUN_I8_32, 37, {2, -1}, 0, 0},     {LLMRUN_I8_128, 133, {2, -1}, 0, 0}, {LLMRUN_F8_32, 36, {2, -1}, 0, 0},
    {LLMRUN_F8_128, 132, {2, -1}, 0, 0},
};

// Bytes of a matrix in file layout: random quants, and small scales where the type keeps its scale fields.
std::vector<uint8_t> random_matrix(const Stored& stored, int64_t rows, int64_t cols) {
  std::vector<uint8_t> data(static_cast<size_t>(rows * llmrun_row_bytes(stored.type, cols)));
  if (stored.type == LLMRUN_F32) {
    const Floats values = random_floats(data.size() / 4);
    memcpy(data.data(), values.data(), data.size());
    return data;
  }
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(generator());
  if (stored.type == LLMRUN_F16 || stored.type == LLMRUN_BF16)  // exponents near 1
    for (size_t i = 1; i < data.size(); i += 2) data[i] = static_cast<uint8_t>((data[i] & 0x83) | 0x38);
  for (size_t at = 0; at < data.size(); at += static_cast<size_t>(stored.bytes)) {
    uint8_t* block = data.data() + at;
    for (int offset : stored.halves)
      if (offset >= 0) block[offset + 1] = static_cast<uint8_t>((stored.type < LLMRUN_I4_32 ? 0x20 : 0x38) | (generator() & 7));
    if (stored.type == LLMRUN_MXFP4) block[0] = static_cast<uint8_t>(120 + (generator() & 7));
    if (stored.type == LLMRUN_IQ1_M) block[55] = static_cast<uint8_t>((block[55] & 15) | 0x20);  // top of the spread f16
  }
  return data;
}

// A codebook of the type's size with values that such a codebook has.
std::vector<int8_t> random_grid(const Stored& stored) {
  static const int8_t three[] = {8, 25, 43}, eight[] = {4, 12, 20, 28, 36, 44, 52, 62};
  std::vector<int8_t> grid(static_cast<size_t>(stored.grid_points * stored.grid_values));
  for (int8_t& value : grid) {
    const unsigned any = generator();
    switch (stored.type) {
      case LLMRUN_IQ1_S: case LLMRUN_IQ1_M: value = static_cast<int8_t>(any % 3) - 1; break;
      case LLMRUN_IQ3_XXS: value = eight[any % 8]; break;
      case LLMRUN_IQ3_S: value = static_cast<int8_t>(2 * (any % 8) + 1); break;
      default: value = three[any % 3];
    }
  }
  return grid;
}

class Builder {
 public:
  LlmrunOp op = {};
  Builder(int code, std::initializer_list<int64_t> numbers, std::initializer_list<const void*> pointers,
          float value = 0.0f, int flags = 0) {
    op.code = code;
    op.flags = flags;
    op.f[0] = value;
    int i = 0;
    for (int64_t number : numbers) op.n[i++] = number;
    i = 0;
    for (const void* pointer : pointers) op.p[i++] = const_cast<void*>(pointer);
  }
};

void run(LlmrunPool* pool, const std::vector<LlmrunOp>& ops) {
  LlmrunProgram* program = llmrun_program_create(pool, ops.data(), static_cast<int64_t>(ops.size()));
  if (!program) {
    printf("refused: %s\n", llmrun_error());
    exit(1);
  }
  const int32_t status = llmrun_program_run(program);
  llmrun_program_destroy(program);
  if (status) {
    printf("status %d\n", status);
    exit(1);
  }
}

// A random matrix of a type, with its codebook.
struct Matrix {
  int type;
  int64_t rows, cols;
  std::vector<uint8_t> data;
  std::vector<int8_t> grid;
  Matrix(const Stored& stored, int64_t n, int64_t k)
      : type(stored.type), rows(n), cols(k), data(random_matrix(stored, n, k)), grid(random_grid(stored)) {}
  const void* codebook() const { return grid.empty() ? nullptr : grid.data(); }
};

Floats linear(LlmrunPool* pool, const Matrix& matrix, int64_t rows, const Floats& x, int bits) {
  const int type = matrix.type;
  std::vector<uint8_t> packed(static_cast<size_t>(llmrun_packed_bytes(type, matrix.rows, matrix.cols)));
  std::vector<uint8_t> blocks(static_cast<size_t>(llmrun_quantized_bytes(rows, matrix.cols, bits)));
  Floats out(static_cast<size_t>(rows * matrix.rows));
  const bool floats = type == LLMRUN_F32 || type == LLMRUN_F16 || type == LLMRUN_BF16;
  const bool quantized = !floats && type != LLMRUN_F8_32 && type != LLMRUN_F8_128;
  const int flags = bits == 16 ? 2 : 0;
  std::vector<LlmrunOp> ops = {
      Builder(LLMRUN_PACK, {matrix.rows, matrix.cols, type}, {matrix.data.data(), packed.data(), matrix.codebook()}).op};
  if (quantized) ops.push_back(Builder(LLMRUN_QUANTIZE, {rows, matrix.cols}, {x.data(), blocks.data()}, 0.0f, flags).op);
  ops.push_back(Builder(LLMRUN_LINEAR, {rows, matrix.cols, 1, matrix.rows, type},
                        {x.data(), quantized ? blocks.data() : nullptr, packed.data(), out.data(), nullptr}, 0.0f, flags).op);
  run(pool, ops);
  return out;
}

// The same product from the values that `embed` decodes, in double precision.
Floats plain_product(LlmrunPool* pool, const Matrix& matrix, int64_t rows, const Floats& x) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < matrix.rows; ++i) ids.push_back(static_cast<int32_t>(i));
  Floats values(static_cast<size_t>(matrix.rows * matrix.cols)), out;
  run(pool, {Builder(LLMRUN_EMBED, {matrix.rows, matrix.cols, matrix.type, matrix.rows},
                     {ids.data(), matrix.data.data(), values.data(), matrix.codebook()}).op});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < matrix.rows; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < matrix.cols; ++k)
        sum += static_cast<double>(x[static_cast<size_t>(r * matrix.cols + k)]) * values[static_cast<size_t>(n * matrix.cols + k)];
      out.push_back(static_cast<float>(sum));
    }
  return out;
}

// Norm, rotation, cache store, attention and SiLU in one program, a cache of these types.
Floats layer(LlmrunPool* pool, int type, int value_type, int64_t width, const Floats& q, const Floats& k, const Floats& v) {
  const int64_t rows = 150, heads = 6, kv_heads = 2, page_tokens = 16, pages = 12;
  const size_t cache_bytes = static_cast<size_t>(pages * kv_heads * page_tokens * width) * (type == LLMRUN_F32 ? 4 : 2);
  std::vector<uint8_t> keys(cache_bytes), values(cache_bytes + static_cast<size_t>(pages * kv_heads * page_tokens * 40));
  std::vector<int32_t> positions, sequences(rows, 0), slots, table;
  for (int32_t i = 0; i < pages; ++i) table.push_back((i * 5 + 3) % static_cast<int32_t>(pages));
  for (int32_t i = 0; i < rows; ++i) {
    positions.push_back(i);
    slots.push_back(table[static_cast<size_t>(i / page_tokens)] * static_cast<int32_t>(page_tokens) + i % 16);
  }
  const int64_t pairs = width / 2;
  Floats query(q.size()), key(k), cosine(static_cast<size_t>(rows * pairs)), sine(cosine.size()), out(q.size());
  Floats frequencies, weight(static_cast<size_t>(width), 0.5f);
  for (int64_t i = 0; i < pairs; ++i) frequencies.push_back(1.0f / static_cast<float>(1 + i));
  run(pool, {Builder(LLMRUN_RMS_NORM, {rows * heads, width}, {q.data(), weight.data(), query.data()}, 1e-5f).op,
             Builder(LLMRUN_ROPE_TABLE, {rows, pairs}, {positions.data(), frequencies.data(), cosine.data(), sine.data()}, 1.0f).op,
             Builder(LLMRUN_ROPE, {rows, heads, width, pairs}, {query.data(), cosine.data(), sine.data()}).op,
             Builder(LLMRUN_ROPE, {rows, kv_heads, width, pairs}, {key.data(), cosine.data(), sine.data()}, 0.0f, 1).op,
             Builder(LLMRUN_KV_STORE, {rows, kv_heads, width, page_tokens, pages, type, value_type},
                     {key.data(), v.data(), keys.data(), values.data(), slots.data()}).op,
             Builder(LLMRUN_ATTENTION, {rows, heads, kv_heads, width, page_tokens, pages, 1, pages, type, value_type},
                     {query.data(), keys.data(), values.data(), positions.data(), sequences.data(), table.data(), out.data()},
                     0.3f).op,
             Builder(LLMRUN_SILU_MUL, {static_cast<int64_t>(out.size())}, {out.data(), q.data(), out.data()}).op,
             Builder(LLMRUN_ADD, {static_cast<int64_t>(out.size())}, {out.data(), q.data(), out.data()}).op,
             Builder(LLMRUN_LOG_SOFTMAX, {rows, heads * width}, {out.data(), out.data()}).op});
  return out;
}

// Two sequences through convolution, delta rule, gated norm and gates; the second step goes on from the first.
Floats recurrent(LlmrunPool* pool, int64_t key_width, int64_t value_width) {
  const int64_t rows = 50, first_rows = 36, key_heads = 2, heads = 4, slots = 3, taps = 4, dilation = 3;
  const int64_t width = 2 * key_heads * key_width + heads * value_width, outs = heads * value_width;
  generator.seed(11);  // the same inputs for every pool
  const auto floats = [](int64_t count) { return random_floats(static_cast<size_t>(count)); };
  const Floats x = floats(rows * width), weights = floats(taps * width), a = floats(rows * heads), b = floats(rows * heads);
  const Floats bias = floats(heads), norm = floats(value_width), gate = floats(rows * outs);
  Floats decay(static_cast<size_t>(heads), -0.7f), past(static_cast<size_t>(slots * (taps - 1) * dilation * width));
  Floats mixed(x.size()), state(static_cast<size_t>(slots * heads * key_width * value_width)), out(gate.size());
  Floats total(gate.size(), 0.5f);
  const std::vector<int32_t> states = {2, 0};
  std::vector<int32_t> positions, sequences;
  for (int32_t r = 0; r < rows; ++r) {  // 20 + 16 rows, then 14 more of the second sequence
    sequences.push_back(r < 20 ? 0 : 1);
    positions.push_back(r < 20 ? r : r - 20);
  }
  for (int64_t from : {int64_t(0), first_rows}) {
    const int64_t count = from ? rows - first_rows : first_rows;
    const int32_t *p = positions.data() + from, *s = sequences.data() + from;
    float *m = mixed.data() + from * width, *o = out.data() + from * outs, *t = total.data() + from * outs;
    const float* g = gate.data() + from * outs;
    run(pool, {Builder(LLMRUN_SHORT_CONV, {count, slots, 2, width, taps, dilation, (taps - 1) * dilation},
                       {p, s, states.data(), x.data() + from * width, weights.data(), past.data(), m}, 0.0f, 1).op,
               Builder(LLMRUN_DELTA_RULE, {count, slots, 2, key_heads, heads, key_width, value_width},
                       {p, s, states.data(), m, a.data() + from * heads, b.data() + from * heads, decay.data(), bias.data(),
                        state.data(), o}).op,
               Builder(LLMRUN_GATED_NORM, {count * heads, value_width}, {o, norm.data(), g, o}, 1e-6f, 1).op,
               Builder(LLMRUN_GATED_NORM, {count * heads, value_width}, {o, norm.data(), g, o}, 1e-6f).op,
               Builder(LLMRUN_SIGMOID_MUL, {count * outs}, {o, g, o}).op,
               Builder(LLMRUN_ADD_SCALED, {count * heads, value_width}, {o, a.data() + from * heads, t}).op});
  }
  return total;
}

bool compare(const char* what, const char* build, const Floats& got, const Floats& want, double bound) {
  double worst = 0, most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = fabs(static_cast<double>(got[i]) - want[i]);
    worst = off > worst || off != off ? off : worst;
    most = fabs(want[i]) > most ? fabs(want[i]) : most;
  }
  const bool good = worst <= bound * most && most > 0;
  printf("%-4s %s %s: off by %.2e of %.2e\n", good ? "ok" : "FAIL", build, what, worst, most);
  return good;
}

// Every storage type, few rows and many; 72 blocks are more than the tile registers' code unpacks at once.
bool products(LlmrunPool* plain, LlmrunPool* pool, const std::string& build) {
  bool good = true;
  for (const Stored& stored : STORED)
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>(1, 512), {7, 512}, {29, 512}, {18, 2304}}) {
      const Floats x = random_floats(static_cast<size_t>(rows * cols));
      const Matrix matrix(stored, 52, cols);
      const std::string name = "linear type " + std::to_string(stored.type) + " rows " + std::to_string(rows);
      const Floats plainly = plain_product(plain, matrix, rows, x);
      for (int bits : {16, 8}) {
        const Floats got = linear(pool, matrix, rows, x, bits);
        const std::string what = name + ", " + std::to_string(bits) + " bits";
        good &= compare(what.c_str(), build.c_str(), got, linear(plain, matrix, rows, x, bits), 3e-6);
        good &= compare((what + ", decoded").c_str(), build.c_str(), got, plainly, bits == 16 ? 1e-4 : 2e-2);
        good &= compare((what + ", last row alone").c_str(), build.c_str(), Floats(got.end() - 52, got.end()),
                        linear(pool, matrix, 1, Floats(x.end() - cols, x.end()), bits), 0.0);
      }
    }
  return good;
}

}  // namespace

int main() {
  bool good = true;
  LlmrunPool* plain = llmrun_pool_create(2, "generic");
  std::string builds = llmrun_builds();
  for (size_t at = 0; at != std::string::npos;) {
    const size_t end = builds.find(',', at);
    const std::string build = builds.substr(at, end == std::string::npos ? end : end - at);
    at = end == std::string::npos ? end : end + 1;
    if (*llmrun_build_refused(build.c_str())) {
      printf("skip %s: %s\n", build.c_str(), llmrun_build_refused(build.c_str()));
      continue;
    }
    LlmrunPool* pool = llmrun_pool_create(3, build.c_str());
    good &= products(plain, pool, build);
    for (const auto& [type, value_type] : {std::pair<int, int>(LLMRUN_F32, LLMRUN_F32), {LLMRUN_F16, LLMRUN_F16},
                                           {LLMRUN_BF16, LLMRUN_BF16}, {LLMRUN_F16, LLMRUN_Q4_1}})
      for (int64_t width : {64, 20}) {
        const size_t count = static_cast<size_t>(150 * width);
        const Floats q = random_floats(count * 6), k = random_floats(count * 2), v = random_floats(count * 2);
        const std::string name = "layer, value type " + std::to_string(value_type) + ", width " + std::to_string(width);
        const Floats got = layer(pool, type, value_type, width, q, k, v);
        good &= compare(name.c_str(), build.c_str(), got, layer(plain, type, value_type, width, q, k, v), 2e-5);
      }
    for (int64_t width : {128, 20}) {
      const std::string name = "recurrent, width " + std::to_string(width);
      good &= compare(name.c_str(), build.c_str(), recurrent(pool, width, width + 4), recurrent(plain, width, width + 4), 2e-5);
    }
    llmrun_pool_destroy(pool);
  }
  llmrun_pool_destroy(plain);
  return good ? 0 : 1;
}
