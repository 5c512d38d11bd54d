// The C interface: checks, and translates exceptions into results and a message.
#include "abi.h"

#include <exception>
#include <string>

#include "core/isa.h"
#include "core/pool.h"
#include "core/program.h"

struct LlmrunPool {
  llmrun::Pool pool;
  LlmrunPool(int threads, const llmrun::KernelTable& table) : pool(threads, table) {}
};

struct LlmrunProgram {
  LlmrunPool* pool;
  llmrun::Program program;
  LlmrunProgram(LlmrunPool* owner, const LlmrunOp* ops, int64_t count)
      : pool(owner), program(owner->pool.table(), owner->pool.threads(), ops, count) {}
};

namespace {

constexpr int MOST_THREADS = 1024;

std::string& message() {
  static thread_local std::string text;
  return text;
}

template <class Result, class Body>
Result guarded(Result failed, Body body) {
  try {
    message().clear();
    return body();
  } catch (const std::exception& error) {
    message() = error.what();
    return failed;
  }
}

std::string refusal(const char* build) {
  const char* reason = llmrun::build_refused(build);
  return std::string("build ") + build + ": " + (reason ? reason : "not in this library");
}

}  // namespace

extern "C" {

int32_t llmrun_abi(void) { return LLMRUN_ABI; }

const char* llmrun_error(void) { return message().c_str(); }

const char* llmrun_cpu_features(void) { return llmrun::cpu_features(); }

const char* llmrun_builds(void) {
  static const std::string text = [] {
    int count = 0;
    const llmrun::KernelTable* const* all = llmrun::builds(&count);
    std::string names;
    for (int i = 0; i < count; ++i) names += (i ? "," : "") + std::string(all[i]->name);
    return names;
  }();
  return text.c_str();
}

const char* llmrun_build_refused(const char* build) {
  const char* reason = build ? llmrun::build_refused(build) : nullptr;
  return reason ? reason : "not in this library";
}

LlmrunPool* llmrun_pool_create(int32_t threads, const char* build) {
  return guarded<LlmrunPool*>(nullptr, [&]() -> LlmrunPool* {
    if (threads < 1 || threads > MOST_THREADS) {
      message() = "threads must be 1 to " + std::to_string(MOST_THREADS) + ", not " + std::to_string(threads);
      return nullptr;
    }
    const llmrun::KernelTable* table = llmrun::choose_build(build);
    if (!table) {
      message() = refusal(build);
      return nullptr;
    }
    return new LlmrunPool(threads, *table);
  });
}

void llmrun_pool_destroy(LlmrunPool* pool) { delete pool; }

const char* llmrun_pool_build(const LlmrunPool* pool) { return pool->pool.table().name; }

LlmrunProgram* llmrun_program_create(LlmrunPool* pool, const LlmrunOp* ops, int64_t count) {
  return guarded<LlmrunProgram*>(nullptr, [&]() -> LlmrunProgram* {
    if (!pool || count < 0 || (count > 0 && !ops)) {
      message() = "no pool or no ops";
      return nullptr;
    }
    return new LlmrunProgram(pool, ops, count);
  });
}

void llmrun_program_destroy(LlmrunProgram* program) { delete program; }

int32_t llmrun_program_run(LlmrunProgram* program) {
  if (!program) return LLMRUN_BAD_PROGRAM;
  return guarded<int32_t>(LLMRUN_BAD_PROGRAM, [&] { return program->pool->pool.run(&program->program); });
}

int64_t llmrun_row_bytes(int32_t type, int64_t cols) {
  const llmrun::TypeInfo* info = llmrun::type_info(type);
  return info && cols > 0 && cols % info->block == 0 ? llmrun::row_bytes(*info, cols) : -1;
}

int64_t llmrun_packed_bytes(int32_t type, int64_t rows, int64_t cols) {
  const llmrun::TypeInfo* info = llmrun::type_info(type);
  if (!info || rows <= 0 || cols <= 0 || cols % info->block) return -1;
  return llmrun::groups_of(rows) * llmrun::group_bytes(*info, cols);
}

int64_t llmrun_quantized_bytes(int64_t rows, int64_t cols, int32_t bits) {
  if (rows <= 0 || cols <= 0 || cols % llmrun::BLOCK || (bits != 8 && bits != 16)) return -1;
  return bits / 8 * rows * (cols / llmrun::BLOCK) * static_cast<int64_t>(sizeof(llmrun::XBlock));
}

}  // extern "C"
