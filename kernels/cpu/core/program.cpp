#include "program.h"

#include <stdlib.h>

#include <algorithm>

#include "experts.h"

namespace llmrun {
namespace {

// A phase worth less than this much work of one thread is not worth a barrier.
constexpr double SERIAL_NS = 1500;
// Pieces of work a thread gets on average: enough that a descheduled thread does not hold the others up for long.
constexpr int64_t PIECES = 4;
constexpr int64_t PANEL_ROWS = 128;
constexpr int64_t CACHE_BYTES = 192 << 10;  // weights reused from the second-level cache while rows stream past
constexpr size_t MOST_PARTIAL_BYTES = size_t(256) << 20;

struct Cost {
  int64_t units;
  double unit_ns;
};

// Rough one-thread costs; they decide only how work is cut.
Cost cost_of(const LlmrunOp& op) {
  const int64_t* n = op.n;
  switch (op.code) {
    case LLMRUN_EMBED: return {n[0], static_cast<double>(n[1])};
    case LLMRUN_RMS_NORM: return {n[0], 10 + 0.12 * static_cast<double>(n[1])};
    case LLMRUN_QUANTIZE: return {n[0], 0.25 * static_cast<double>(n[1])};
    case LLMRUN_SILU_MUL: return {(n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS, 500};
    case LLMRUN_ADD: return {(n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS, 100};
    case LLMRUN_ROPE_TABLE: return {n[0], 20 * static_cast<double>(n[1])};
    case LLMRUN_ROPE: return {n[0], 0.3 * static_cast<double>(n[1] * n[2])};
    case LLMRUN_KV_STORE: return {n[0], 10 + 0.1 * static_cast<double>(n[1] * n[2])};
    case LLMRUN_GATHER: return {n[0], 10 + 0.1 * static_cast<double>(n[1])};
    case LLMRUN_COLUMNS: return {n[0], 10 + 0.5 * static_cast<double>(n[1])};
    case LLMRUN_ARGMAX: return {n[0], 0.1 * static_cast<double>(n[1])};
    case LLMRUN_EXPERT_ROUTE: return {n[0], 3 * static_cast<double>(n[1])};
    case LLMRUN_EXPERT_PLAN: return {1, 3 * static_cast<double>(n[0] * n[1])};
    case LLMRUN_EXPERT_INPUT: return {n[0] * n[1], 0.4 * static_cast<double>(n[2])};
    case LLMRUN_EXPERT_HIDDEN: return {n[0], 0.8 * static_cast<double>(n[1])};
    case LLMRUN_EXPERT_COMBINE: return {n[0], 0.1 * static_cast<double>(n[1] * n[2])};
    case LLMRUN_PUT_ROWS: return {n[0], 10 + 0.1 * static_cast<double>(n[1])};
    case LLMRUN_LAYER_NORM: return {n[0], 10 + 0.3 * static_cast<double>(n[1])};
    case LLMRUN_GELU: return {(n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS, op.flags & GELU_TANH ? 800.0 : 8000.0};
    case LLMRUN_BLOCK_CONV: return {n[0], 10 + 0.2 * static_cast<double>(n[1] * n[2])};
    case LLMRUN_LOG_SOFTMAX: return {n[0], 0.8 * static_cast<double>(n[1])};
    case LLMRUN_GATED_NORM: return {n[0], 10 + 0.5 * static_cast<double>(n[1])};
    case LLMRUN_SIGMOID_MUL: return {(n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS, 500};
    case LLMRUN_ADD_SCALED: return {n[0], 20 + 0.1 * static_cast<double>(n[1])};
    default: return {groups_of(n[0]), 16 * static_cast<double>(n[1])};  // pack
  }
}

Phase plain_phase(const LlmrunOp& op, Kernel run, int threads) {
  const Cost cost = cost_of(op);
  Phase phase = {&op, run, cost.units, 1, false, false, false};
  phase.serial = threads == 1 || cost.units == 1 || static_cast<double>(cost.units) * cost.unit_ns < SERIAL_NS;
  phase.chunk = std::max<int64_t>(1, cost.units / (threads * PIECES));
  return phase;
}

double group_ns(const LlmrunOp& op, int64_t type) {
  const double bytes = static_cast<double>(group_bytes(*type_info(type), op.n[1]));
  const double products = static_cast<double>(op.n[0] * op.n[1] * GROUP);
  return std::max(bytes / 10, products / 100);
}

Phase linear_phase(LlmrunOp* op, Kernel run, int threads) {
  int64_t groups = 0, bytes = 0;
  double total_ns = 0;
  for (int64_t i = 0; i < op->n[2]; ++i) {
    const int64_t type = op->n[4 + 2 * i], count = groups_of(op->n[3 + 2 * i]);
    groups += count;
    bytes += count * group_bytes(*type_info(type), op->n[1]);
    total_ns += static_cast<double>(count) * group_ns(*op, type);
  }
  const int64_t rows = op->n[0];
  const bool panels = groups < threads * PIECES && rows > PANEL_ROWS;
  op->n[11] = panels ? PANEL_ROWS : rows;
  op->n[12] = groups;
  Phase phase = {op, run, groups * ((rows + op->n[11] - 1) / op->n[11]), 1, false, false, false};
  phase.serial = threads == 1 || total_ns < SERIAL_NS;
  phase.chunk = std::max<int64_t>(1, phase.units / (threads * PIECES));
  if (rows > 1) phase.chunk = std::max<int64_t>(1, std::min(phase.chunk, CACHE_BYTES * groups / std::max<int64_t>(1, bytes)));
  return phase;
}

}  // namespace

int64_t attention_scratch_bytes(const LlmrunOp& op) {
  const int64_t per_head = op.n[1] / op.n[2], queries = attention_rows(per_head) * per_head;
  const int64_t padded = (op.n[3] + 15) / 16 * 16;
  const int64_t floats = queries * (padded + SPLIT + 2 * partial_floats(op.n[3])) + padded * 32 + SPLIT * (MOST_PANEL + 2);
  return floats * 4 + (2 * SPLIT + SPLIT / KEY_BLOCK) * static_cast<int64_t>(sizeof(void*)) + 64;
}

Program::Program(const KernelTable& table, int threads, const LlmrunOp* ops, int64_t count)
    : status(LLMRUN_OK), threads_(threads), ops_(ops, ops + count) {
  for (LlmrunOp& op : ops_) check_op(op);
  for (const LlmrunOp& op : ops_) add(table, op);
}

Program::~Program() { free(partials_); }

void Program::add(const KernelTable& table, const LlmrunOp& op) {
  const auto plain = [&](Kernel run) { phases_.push_back(plain_phase(op, run, threads_)); };
  switch (op.code) {
    case LLMRUN_EMBED: return plain(embed);
    case LLMRUN_RMS_NORM: return plain(table.rms_norm);
    case LLMRUN_QUANTIZE: return plain(table.quantize);
    case LLMRUN_LINEAR:
      reserve_row(op.n[1]);
      phases_.push_back(linear_phase(const_cast<LlmrunOp*>(&op), table.linear, threads_));
      return;
    case LLMRUN_SILU_MUL: return plain(table.silu_mul);
    case LLMRUN_ADD: return plain(table.add);
    case LLMRUN_ROPE_TABLE: return plain(rope_table);
    case LLMRUN_ROPE: return plain(table.rope);
    case LLMRUN_KV_STORE: return plain(table.kv_store);
    case LLMRUN_GATHER: return plain(gather);
    case LLMRUN_COLUMNS: return plain(columns);
    case LLMRUN_ARGMAX: return plain(table.argmax);
    case LLMRUN_LOG_SOFTMAX: return plain(table.log_softmax);
    case LLMRUN_PACK: return plain(pack);
    case LLMRUN_PUT_ROWS: return plain(put_rows);
    case LLMRUN_LAYER_NORM: return plain(table.layer_norm);
    case LLMRUN_GELU: return plain(table.gelu);
    case LLMRUN_BLOCK_CONV: return plain(table.block_conv);
    case LLMRUN_EXPERT_ROUTE: return plain(table.expert_route);
    case LLMRUN_EXPERT_PLAN:
      scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(op.n[2]) * sizeof(int32_t));
      return plain(expert_plan);
    case LLMRUN_EXPERT_INPUT: return plain(table.expert_input);
    case LLMRUN_EXPERT_LINEAR: reserve_row(op.n[1]); return add_expert_products(table, const_cast<LlmrunOp*>(&op));
    case LLMRUN_EXPERT_HIDDEN: return plain(table.expert_hidden);
    case LLMRUN_EXPERT_COMBINE: return plain(table.expert_combine);
    case LLMRUN_SHORT_CONV: case LLMRUN_DELTA_RULE: return add_recurrent(table, const_cast<LlmrunOp*>(&op));
    case LLMRUN_GATED_NORM: return plain(table.gated_norm);
    case LLMRUN_SIGMOID_MUL: return plain(table.sigmoid_mul);
    case LLMRUN_ADD_SCALED: return plain(table.add_scaled);
    case LLMRUN_ATTENTION: break;
    default: return add_streams(table, op);  // by check_op
  }
  groups_.reserve(std::max(groups_.capacity(), static_cast<size_t>(op.n[0])));
  scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(attention_scratch_bytes(op)));
  phases_.push_back({&op, table.attention, 0, 1, threads_ == 1, true, false});
  phases_.push_back({&op, table.attention_merge, 0, 1, threads_ == 1, false, true});
}

// Scratch for a row of 16-bit activations in another form.
void Program::reserve_row(int64_t cols) {
  scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(cols / BLOCK * 2) * sizeof(XBlock));
}

// Cuts the rows into groups of one sequence. False: a row points outside the cache (status is set).
bool Program::group_rows(const LlmrunOp& op) {
  const int32_t* positions = static_cast<const int32_t*>(op.p[3]);
  const int32_t* sequences = static_cast<const int32_t*>(op.p[4]);
  const int32_t* pages = static_cast<const int32_t*>(op.p[5]);
  const int32_t* firsts = static_cast<const int32_t*>(op.p[9]);
  const int64_t page_tokens = op.n[4], page_count = op.n[5], most_pages = op.n[7];
  const int64_t most = attention_rows(op.n[1] / op.n[2]);
  groups_.clear();
  for (int64_t r = 0; r < op.n[0]; ++r) {
    const int64_t position = positions[r], sequence = sequences[r];
    const int64_t first = firsts ? firsts[r] : 0;
    if (position < 0 || position >= most_pages * page_tokens || sequence < 0 || sequence >= op.n[6]) return false;
    if (first < 0 || first > position) return false;
    const int32_t split = static_cast<int32_t>(first / SPLIT);
    const bool same = !groups_.empty() && groups_.back().sequence == sequence && groups_.back().rows < most;
    if (!same) groups_.push_back({static_cast<int32_t>(r), 0, static_cast<int32_t>(sequence), 0, 0, 0, split});
    AttentionGroup& group = groups_.back();
    ++group.rows;
    group.keys = std::max(group.keys, static_cast<int32_t>(position + 1));
    group.first_split = std::min(group.first_split, split);
  }
  for (const AttentionGroup& group : groups_)
    for (int64_t page = 0; page * page_tokens < group.keys; ++page) {
      const int32_t number = pages[group.sequence * most_pages + page];
      if (number < 0 || number >= page_count) return false;
    }
  return true;
}

// Split mode: numbers the units and makes room for their results; stays in direct mode when there is none.
void Program::place_partials(const LlmrunOp& op) {
  const int64_t kv_heads = op.n[2], per_head = op.n[1] / kv_heads;
  int64_t units = 0, floats = 0;
  for (AttentionGroup& group : groups_) {
    const int64_t count = kv_heads * attention_splits(group);
    group.first_unit = units;
    group.first_float = floats;
    units += count;
    floats += count * group.rows * per_head * partial_floats(op.n[3]);
  }
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > MOST_PARTIAL_BYTES) return;
  if (bytes > partial_bytes_) {
    free(partials_);
    partials_ = static_cast<float*>(malloc(bytes + bytes / 4));
    partial_bytes_ = partials_ ? bytes + bytes / 4 : 0;
  }
  if (!partials_) return;
  plan_.units = units;
  plan_.partials = partials_;
  plan_.split = true;
}

void Program::prepare(Phase* phase) {
  if (phase->op->code == LLMRUN_EXPERT_LINEAR) return prepare_experts(phase);
  if (phase->op->code == LLMRUN_SHORT_CONV || phase->op->code == LLMRUN_DELTA_RULE) return prepare_recurrent(phase);
  if (phase->merges) {
    phase->units = plan_.split ? plan_.count * phase->op->n[2] : 0;
    const double cost = static_cast<double>(phase->op->n[0] * phase->op->n[1]) * 100;
    phase->serial = threads_ == 1 || cost < SERIAL_NS;
    return;
  }
  if (!phase->plans) return;
  const LlmrunOp& op = *phase->op;
  phase->units = 0;
  plan_ = {};
  if (!group_rows(op)) {
    status = LLMRUN_BAD_ROW;
    return;
  }
  plan_.groups = groups_.data();
  plan_.count = static_cast<int64_t>(groups_.size());
  plan_.units = plan_.count * op.n[2];
  int64_t keys = 0;
  for (const AttentionGroup& group : groups_) keys = std::max<int64_t>(keys, group.keys);
  if (threads_ > 1 && keys > SPLIT && plan_.units < 4 * threads_) place_partials(op);
  phase->units = plan_.units;
  phase->chunk = plan_.split ? std::max<int64_t>(1, plan_.units / (threads_ * PIECES)) : 1;
}

Job Program::job(const Phase& phase, int64_t begin, int64_t end, uint8_t* scratch) {
  return {phase.op, begin, end, scratch, &status, &plan_, runs_.data()};
}

}  // namespace llmrun
