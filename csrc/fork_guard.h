// Keeps a forked child from holding its parent's locks.
//
// A child inherits the open file descriptions, so the parent's lock bytes would outlive the parent
// for as long as the child lives. The child closes its copies first thing, and never unlocks: an
// unlock through a copy would take the lock from the parent. The mapping, which is a use of the open
// file too, is kept from children altogether (Memory::keep_from_children).
#pragma once

namespace ec_ipc {

class Participant;

namespace fork_guard {

void enlist(Participant* participant);
void dismiss(Participant* participant);

}  // namespace fork_guard
}  // namespace ec_ipc
