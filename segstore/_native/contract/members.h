/* The members of a store, and what they ask of its host (members.c). */
#ifndef SEG_CONTRACT_MEMBERS_H
#define SEG_CONTRACT_MEMBERS_H

#include "shared.h"

/* Whether the member that had a slot in this incarnation is dead: its byte lock is free, or the slot has a later one. */
int64_t seg_member_is_dead(const seg_member *m, int32_t slot, uint32_t incarnation);
/* Take the byte lock of a free slot below `most`, and make the next incarnation of it ours: the slot; -EUSERS: all are
 * taken; -errno. */
int64_t seg_member_join(seg_member *m, int32_t most);
/* Wait until *word is no longer `seen`, by one futex that processes share: 0; -ETIMEDOUT; -EINTR. */
int64_t seg_shared_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ms);
/* Add 1 to a futex that processes share, and wake all that wait there. */
void seg_shared_ring(uint32_t *word);
/* Post a request in this member's slot; all its other fields are set: its number, for `seg_request_await`. */
int64_t seg_request_post(seg_member *m, int32_t asks);
/* Wait for the answer: 0; -ETIMEDOUT; -EINTR. */
int64_t seg_request_await(seg_member *m, int64_t number, int64_t timeout_ms);
/* Take back a request that nobody has answered. */
void seg_request_forget(seg_member *m, int64_t number);
/* By the host: the next slot from `from` on with a request that is asked, or that a dead host has taken; it is taken
 * then, and *number is its word. -1: none. */
int64_t seg_request_next(seg_member *m, int32_t from, uint32_t *number);
/* By the host: answer it, unless its member asks for something else by now: 1; 0. */
int64_t seg_request_answer(seg_member *m, int32_t slot, uint32_t number, int32_t answer, int32_t error, const char *text);

#endif
