// Refuses ops whose numbers or pointers cannot be right, before anything runs. Contents (ids, slots, pages) are checked
// by the kernels while they run.
#include <stdexcept>
#include <string>

#include "program.h"

namespace llmrun {
namespace {

constexpr int64_t MOST = int64_t(1) << 40;

[[noreturn]] void refuse(const LlmrunOp& op, const std::string& text) {
  throw std::invalid_argument("op code " + std::to_string(op.code) + ": " + text);
}

// n[from, to) positive and sane.
void positive(const LlmrunOp& op, int from, int to) {
  for (int i = from; i < to; ++i)
    if (op.n[i] <= 0 || op.n[i] > MOST) refuse(op, "n[" + std::to_string(i) + "] is " + std::to_string(op.n[i]));
}

void present(const LlmrunOp& op, int count) {
  for (int i = 0; i < count; ++i)
    if (!op.p[i]) refuse(op, "p[" + std::to_string(i) + "] is null");
}

void check_type(const LlmrunOp& op, int64_t type, int64_t cols) {
  const TypeInfo* info = type_info(type);
  if (!info) refuse(op, "unknown type " + std::to_string(type));
  if (cols % info->block) refuse(op, std::to_string(cols) + " columns are no multiple of the type's block");
}

void check_grid(const LlmrunOp& op, int64_t type, int at) {
  if (needs_grid(type) && !op.p[at]) refuse(op, "the codebook is missing");
}

void check_linear(const LlmrunOp& op) {
  positive(op, 0, 3);
  if (op.n[2] > LLMRUN_MAX_WEIGHTS) refuse(op, "too many matrices");
  present(op, 1);
  for (int64_t i = 0; i < op.n[2]; ++i) {
    const int n = static_cast<int>(3 + 2 * i), p = static_cast<int>(2 + 3 * i);
    if (op.n[n] <= 0 || op.n[n] > MOST) refuse(op, "rows of a matrix are " + std::to_string(op.n[n]));
    check_type(op, op.n[n + 1], op.n[1]);
    if (!op.p[p] || !op.p[p + 1]) refuse(op, "matrix or output is null");
    if (!takes_floats(op.n[n + 1]) && !op.p[1]) refuse(op, "quantised activations are missing");
  }
}

void check_expert_linear(const LlmrunOp& op) {
  positive(op, 0, 4);
  if (op.n[3] > 2) refuse(op, "too many matrices");
  if (!op.p[0] || !op.p[2]) refuse(op, "x or plan is null");
  for (int64_t i = 0; i < op.n[3]; ++i) {
    const int n = static_cast<int>(4 + 2 * i), p = static_cast<int>(3 + 2 * i);
    positive(op, n, n + 1);
    check_type(op, op.n[n + 1], op.n[1]);
    if (!op.p[p] || !op.p[p + 1]) refuse(op, "matrices or output are null");
    if (!takes_floats(op.n[n + 1]) && !op.p[1]) refuse(op, "quantised activations are missing");
    for (int64_t e = 0; e < op.n[2]; ++e)
      if (!static_cast<void**>(op.p[p])[e]) refuse(op, "the matrix of expert " + std::to_string(e) + " is null");
  }
}

// Columns of rows that may be quantised: `blocks` 0 or whole blocks.
void check_blocks(const LlmrunOp& op, int64_t cols, const void* blocks) {
  if (blocks && cols % BLOCK) refuse(op, "columns are no multiple of 32");
}

void check_cache_type(const LlmrunOp& op, int64_t type, const void* scales, bool values = false) {
  if (values && type == LLMRUN_Q4_1 && !scales) return;
  if (!is_float(type) && type != LLMRUN_I8) refuse(op, "the cache type is not f32, f16, bf16 or int8");
  if ((type == LLMRUN_I8) != (scales != nullptr)) refuse(op, "an int8 cache, and no other, has scales");
}

void check_attention(const LlmrunOp& op) {
  positive(op, 0, 8);
  present(op, 7);
  check_cache_type(op, op.n[8], op.p[7]);
  check_cache_type(op, op.n[9], op.p[8], true);
  if (op.n[1] % op.n[2]) refuse(op, "heads are no multiple of kv heads");
  if (op.n[1] > 4096 || op.n[3] > MOST_HEAD_WIDTH) refuse(op, "more than 4096 heads or head elements");
}

void check_short_conv(const LlmrunOp& op) {
  positive(op, 0, 6);
  if (op.n[4] > MOST_TAPS || op.n[5] > 1024) refuse(op, "more taps or dilation than the kernels take");
  if (op.n[6] < (op.n[4] - 1) * op.n[5] || op.n[6] > MOST) refuse(op, "the ring of past inputs is too short");
  present(op, 5);
  if (!op.p[6] || (op.n[4] > 1 && !op.p[5])) refuse(op, "past or output is null");
}

void check_delta_rule(const LlmrunOp& op) {
  positive(op, 0, 7);
  present(op, 10);
  if (op.n[4] % op.n[3]) refuse(op, "value heads are no multiple of key heads");
  if (op.n[5] > 4096 || op.n[6] > 4096) refuse(op, "more than 4096 head elements");
  if (op.n[8] < 0 || op.n[8] > 4096) refuse(op, "pending rows are " + std::to_string(op.n[8]));
  if (op.n[8] && (!op.p[10] || !op.p[11] || !op.p[12])) refuse(op, "pending rows, keep or fold is null");
}

}  // namespace

void check_op(const LlmrunOp& op) {
  switch (op.code) {
    case LLMRUN_EMBED:
      positive(op, 0, 2);
      positive(op, 3, 4);
      present(op, 3);
      check_grid(op, op.n[2], 3);
      return check_type(op, op.n[2], op.n[1]);
    case LLMRUN_QUANTIZE:
      positive(op, 0, 2);
      if (op.n[1] % BLOCK) refuse(op, "columns are no multiple of 32");
      return present(op, 2);
    case LLMRUN_RMS_NORM: positive(op, 0, 2); return present(op, 3);
    case LLMRUN_LINEAR: return check_linear(op);
    case LLMRUN_SILU_MUL: case LLMRUN_ADD: positive(op, 0, 1); return present(op, 3);
    case LLMRUN_ROPE_TABLE: positive(op, 0, 2); return present(op, 4);
    case LLMRUN_ROPE:
      positive(op, 0, 4);
      if (op.n[3] * 2 > op.n[2]) refuse(op, "more pairs than half the head");
      return present(op, 3);
    case LLMRUN_KV_STORE:
      positive(op, 0, 5);
      check_cache_type(op, op.n[5], op.p[5]);
      check_cache_type(op, op.n[6], op.p[6], true);
      if (op.n[2] > MOST_HEAD_WIDTH) refuse(op, "more than 4096 head elements");
      return present(op, 5);
    case LLMRUN_ATTENTION: return check_attention(op);
    case LLMRUN_GATHER: positive(op, 0, 3); return present(op, 3);
    case LLMRUN_COLUMNS: positive(op, 0, 2); return present(op, 3);
    case LLMRUN_ARGMAX: case LLMRUN_LOG_SOFTMAX: positive(op, 0, 2); return present(op, 2);
    case LLMRUN_EXPERT_ROUTE:
      positive(op, 0, 3);
      if (op.n[2] > op.n[1]) refuse(op, "more choices than experts");
      return present(op, 3);
    case LLMRUN_EXPERT_PLAN: positive(op, 0, 3); return present(op, 4);
    case LLMRUN_EXPERT_INPUT: positive(op, 0, 3); present(op, 4); return check_blocks(op, op.n[2], op.p[4]);
    case LLMRUN_EXPERT_LINEAR: return check_expert_linear(op);
    case LLMRUN_EXPERT_HIDDEN: positive(op, 0, 2); present(op, 3); return check_blocks(op, op.n[1], op.p[3]);
    case LLMRUN_EXPERT_COMBINE: positive(op, 0, 3); return present(op, 4);
    case LLMRUN_SHORT_CONV: return check_short_conv(op);
    case LLMRUN_DELTA_RULE: return check_delta_rule(op);
    case LLMRUN_GATED_NORM: positive(op, 0, 2); return present(op, 4);
    case LLMRUN_SIGMOID_MUL: positive(op, 0, 1); return present(op, 3);
    case LLMRUN_ADD_SCALED: positive(op, 0, 2); return present(op, 3);
    case LLMRUN_PUT_ROWS:
      positive(op, 0, 4);
      if (op.n[4] < 0 || op.n[4] + op.n[1] > op.n[3]) refuse(op, "columns outside the source");
      return present(op, 3);
    case LLMRUN_LAYER_NORM: positive(op, 0, 2); return present(op, 4);
    case LLMRUN_GELU: positive(op, 0, 1); return present(op, 2);
    case LLMRUN_BLOCK_CONV:
      positive(op, 0, 4);
      if (op.n[1] % op.n[3] || op.n[4] < 0 || op.n[4] > 1) refuse(op, "groups or side of a convolution");
      return present(op, 5);
    case LLMRUN_PACK:
      positive(op, 0, 2);
      present(op, 2);
      check_grid(op, op.n[2], 2);
      return check_type(op, op.n[2], op.n[1]);
    default:
      if (const char* fault = fault_of_streams(op)) refuse(op, fault);
  }
}

}  // namespace llmrun
