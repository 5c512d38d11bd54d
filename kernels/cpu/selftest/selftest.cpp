// Compares every build this machine can run with the generic one, op by op, on random data through the C interface. For
// machines without Python: a cross build run under an emulator. Prints a line for each op and build; exit 1 on a mismatch.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <random>
#include <string>
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

// Bytes of a matrix in file layout: random quants, and small scales where the type keeps its f16 fields.
std::vector<uint8_t> random_matrix(int type, int64_t rows, int64_t cols) {
  struct Fields {
    int type, bytes, offsets[2];
  };
  static const Fields table[] = {{LLMRUN_Q4_0, 18, {0, -1}},  {LLMRUN_Q4_1, 20, {0, 2}},  {LLMRUN_Q5_0, 22, {0, -1}},
                                 {LLMRUN_Q5_1, 24, {0, 2}},   {LLMRUN_Q8_0, 34, {0, -1}}, {LLMRUN_Q4_K, 144, {0, 2}},
                                 {LLMRUN_Q5_K, 176, {0, 2}},  {LLMRUN_Q6_K, 210, {208, -1}}};
  std::vector<uint8_t> data(static_cast<size_t>(rows * llmrun_row_bytes(type, cols)));
  if (type == LLMRUN_F32) {
    const Floats values = random_floats(data.size() / 4);
    memcpy(data.data(), values.data(), data.size());
    return data;
  }
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(generator());
  if (type == LLMRUN_F16 || type == LLMRUN_BF16)  // exponents near 1
    for (size_t i = 1; i < data.size(); i += 2) data[i] = static_cast<uint8_t>((data[i] & 0x83) | 0x38);
  for (const Fields& fields : table)
    if (fields.type == type)
      for (size_t at = 0; at < data.size(); at += static_cast<size_t>(fields.bytes))
        for (int offset : fields.offsets)
          if (offset >= 0) data[at + static_cast<size_t>(offset) + 1] = static_cast<uint8_t>(0x20 | (generator() & 7));
  return data;
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

Floats linear(LlmrunPool* pool, int type, int64_t rows, int64_t cols, int64_t out_rows, const Floats& x,
              const std::vector<uint8_t>& matrix, int bits) {
  std::vector<uint8_t> packed(static_cast<size_t>(llmrun_packed_bytes(type, out_rows, cols)));
  std::vector<uint8_t> blocks(static_cast<size_t>(llmrun_quantized_bytes(rows, cols, bits)));
  Floats out(static_cast<size_t>(rows * out_rows));
  const bool quantized = type != LLMRUN_F32 && type != LLMRUN_F16 && type != LLMRUN_BF16;
  std::vector<LlmrunOp> ops = {Builder(LLMRUN_PACK, {out_rows, cols, type}, {matrix.data(), packed.data()}).op};
  if (quantized) ops.push_back(Builder(LLMRUN_QUANTIZE, {rows, cols}, {x.data(), blocks.data()}, 0.0f, bits == 16 ? 2 : 0).op);
  ops.push_back(Builder(LLMRUN_LINEAR, {rows, cols, 1, out_rows, type},
                        {x.data(), quantized ? blocks.data() : nullptr, packed.data(), out.data(), nullptr}, 0.0f, bits == 16 ? 2 : 0).op);
  run(pool, ops);
  return out;
}

// Norm, rotation, cache store, attention and SiLU in one program, cache of `type`.
Floats layer(LlmrunPool* pool, int type, int64_t width, const Floats& q, const Floats& k, const Floats& v) {
  const int64_t rows = 150, heads = 6, kv_heads = 2, page_tokens = 16, pages = 12;
  const size_t cache_bytes = static_cast<size_t>(pages * kv_heads * page_tokens * width) * (type == LLMRUN_F32 ? 4 : 2);
  std::vector<uint8_t> keys(cache_bytes), values(cache_bytes);
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
             Builder(LLMRUN_KV_STORE, {rows, kv_heads, width, page_tokens, pages, type},
                     {key.data(), v.data(), keys.data(), values.data(), slots.data()}).op,
             Builder(LLMRUN_ATTENTION, {rows, heads, kv_heads, width, page_tokens, pages, 1, pages, type},
                     {query.data(), keys.data(), values.data(), positions.data(), sequences.data(), table.data(), out.data()},
                     0.3f).op,
             Builder(LLMRUN_SILU_MUL, {static_cast<int64_t>(out.size())}, {out.data(), q.data(), out.data()}).op,
             Builder(LLMRUN_ADD, {static_cast<int64_t>(out.size())}, {out.data(), q.data(), out.data()}).op,
             Builder(LLMRUN_LOG_SOFTMAX, {rows, heads * width}, {out.data(), out.data()}).op});
  return out;
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
    for (int type : {LLMRUN_F32, LLMRUN_F16, LLMRUN_BF16, LLMRUN_Q8_0, LLMRUN_Q4_0, LLMRUN_Q4_1, LLMRUN_Q5_0,
                     LLMRUN_Q5_1, LLMRUN_Q4_K, LLMRUN_Q5_K, LLMRUN_Q6_K})
      for (int64_t rows : {1, 7}) {
        const Floats x = random_floats(static_cast<size_t>(rows * 512));
        const std::vector<uint8_t> matrix = random_matrix(type, 52, 512);
        const std::string name = "linear type " + std::to_string(type) + " rows " + std::to_string(rows);
        for (int bits : {16, 8})
          good &= compare((name + ", " + std::to_string(bits) + " bits").c_str(), build.c_str(),
                          linear(pool, type, rows, 512, 52, x, matrix, bits),
                          linear(plain, type, rows, 512, 52, x, matrix, bits), 3e-6);
      }
    for (int type : {LLMRUN_F32, LLMRUN_F16, LLMRUN_BF16})
      for (int64_t width : {64, 20}) {
        const size_t count = static_cast<size_t>(150 * width);
        const Floats q = random_floats(count * 6), k = random_floats(count * 2), v = random_floats(count * 2);
        const std::string name = "layer, cache type " + std::to_string(type) + ", width " + std::to_string(width);
        good &= compare(name.c_str(), build.c_str(), layer(pool, type, width, q, k, v), layer(plain, type, width, q, k, v), 2e-5);
      }
    llmrun_pool_destroy(pool);
  }
  llmrun_pool_destroy(plain);
  return good ? 0 : 1;
}
