/* The members of a store, and their requests to its host (members.c). */
#ifndef SEG_CONTRACT_MEMBERS_H
#define SEG_CONTRACT_MEMBERS_H

#include "shared.h"

/* Whether the member that had a slot in this incarnation is dead: its byte lock is free, or the slot has a later one. */
int64_t seg_member_is_dead(const seg_member *m, int32_t slot, uint32_t incarnation);
/* Take the byte lock of a free slot below `most`, and begin its next incarnation. Returns the slot; -EUSERS if all are
 * taken; -errno. */
int64_t seg_member_join(seg_member *m, int32_t most);
/* Wait until *word is no longer `seen`, on a futex that processes share: 0; -ETIMEDOUT; -EINTR. */
int64_t seg_shared_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ms);
/* Add 1 to a futex that processes share, and wake all its waiters. */
void seg_shared_ring(uint32_t *word);
/* Post a request in this member's slot; all its other fields are set before. Returns its number, for
 * `seg_request_await`. */
int64_t seg_request_post(seg_member *m, int32_t asks);
/* Wait for the answer: 0; -ETIMEDOUT; -EINTR. */
int64_t seg_request_await(seg_member *m, int64_t number, int64_t timeout_ms);
/* Withdraw a request that was not answered. */
void seg_request_forget(seg_member *m, int64_t number);
/* By the host: take the next request from slot `from` on: one that is asked, or that a dead host had taken. Returns the
 * slot, and its word in *number; -1: none. */
int64_t seg_request_next(seg_member *m, int32_t from, uint32_t *number);
/* By the host: answer a request, unless its member has posted another since: 1; 0. */
int64_t seg_request_answer(seg_member *m, int32_t slot, uint32_t number, int32_t answer, int32_t error, const char *text);

#endif
