// The phases of a mixture of experts: how many units its products have is known only when the router has chosen.
#include <algorithm>

#include "experts.h"
#include "program.h"

namespace llmrun {
namespace {

constexpr int64_t PIECES = 6;                // of work a thread gets on average; experts differ in rows
constexpr int64_t CACHE_BYTES = 192 << 10;   // weights reused from the second-level cache while rows stream past

int64_t expert_groups(const LlmrunOp& op) {
  int64_t groups = 0;
  for (int64_t i = 0; i < op.n[3]; ++i) groups += groups_of(op.n[4 + 2 * i]);
  return groups;
}

int64_t expert_bytes(const LlmrunOp& op) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < op.n[3]; ++i)
    bytes += groups_of(op.n[4 + 2 * i]) * group_bytes(*type_info(op.n[5 + 2 * i]), op.n[1]);
  return bytes;
}

}  // namespace

void Program::add_expert_products(const KernelTable& table, LlmrunOp* op) {
  op->n[8] = expert_groups(*op);
  phases_.push_back({op, table.expert_linear, 0, 1, threads_ == 1, false, false});
}

void Program::prepare_experts(Phase* phase) {
  const LlmrunOp& op = *phase->op;
  phase->units = ExpertPlan(static_cast<const int32_t*>(op.p[2])).count() * op.n[8];
  phase->chunk = std::max<int64_t>(1, phase->units / (threads_ * PIECES));
  if (op.n[0] <= op.n[2]) return;  // about one row an expert: nothing is read twice
  phase->chunk = std::max<int64_t>(1, std::min(phase->chunk, CACHE_BYTES * op.n[8] / expert_bytes(op)));
}

}  // namespace llmrun
