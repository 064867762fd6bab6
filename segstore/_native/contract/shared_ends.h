/* The ends of shared logs, as readers see them (shared_ends.c). */
#ifndef SEG_CONTRACT_SHARED_ENDS_H
#define SEG_CONTRACT_SHARED_ENDS_H

#include <stdint.h>

#include "shared.h"

/* The record that is a log's end now: 1; 0: the log was never opened while it was shared, or `current` names no record. */
int64_t seg_shared_now(const seg_shared_log *log, seg_shared_end *out);
/* What is published of the log with this number, if its key is values[0]: 1, and the eight values are those of a slot of
 * seg_snapshot. 0, and the values stay: the store is not shared any more, the log lies outside of the mapping, has another
 * key, or no end. If the host is swapping, or has died while it swapped, the ends of several logs as one, the value is the
 * next one from the moment on in which that is decided. */
int64_t seg_shared_ends(const uint8_t *shared, int64_t len, int64_t slot, int64_t *values);
/* The sealed ends of the log with this number, if its key is `key`, which are final and of a file that still has its
 * name: how many; base offset and position of each, one behind the other, with room for SEG_SEALED. */
int64_t seg_shared_sealed(const uint8_t *shared, int64_t len, int64_t slot, int64_t key, int64_t *found);
/* Count an append to a shared log, which is in the log already, and wake those that wait for it: how many, as seg_wake. */
int64_t seg_shared_count(uint8_t *ends, int64_t len, uint8_t *shared);

#endif
