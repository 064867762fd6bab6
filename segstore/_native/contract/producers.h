/* The producers with ids of a partition: their epochs, sequences and transactions (producers.c). */
#ifndef SEG_CONTRACT_PRODUCERS_H
#define SEG_CONTRACT_PRODUCERS_H

#include <stdint.h>

#include "batch.h"

enum { SEG_RETAINED = 5 }; /* the last batches of a producer that are kept */
enum { SEG_NO_CLOCK = -1 }; /* in place of a time in ms: for batches that were read, and not appended */

/* The kept fields of a data batch. */
typedef struct seg_retained {
    int64_t last_offset;
    int64_t timestamp;       /* ms */
    int32_t last_sequence;   /* -1: none */
    int32_t offset_delta;    /* the last less the first offset */
} seg_retained;

/* The state of a producer (Kafka: ProducerStateEntry); -1 stands for none. */
typedef struct seg_producer {
    int64_t producer_id;     /* -1: a slot without a producer */
    int64_t last_timestamp;
    int64_t txn_first_offset; /* of its open transaction */
    int64_t appended_ms;     /* the clock at this process's last append for it; not in the log */
    int32_t coordinator_epoch;
    int16_t producer_epoch;
    int16_t kept;            /* the number of `batches`: the last ones of that epoch, oldest first */
    seg_retained batches[SEG_RETAINED];
} seg_producer;

typedef struct seg_open_txn {
    int64_t first_offset;
    int64_t producer_id;
} seg_open_txn;

/* The producers up to an offset of the log. A table is empty if it is all zeros, except max_producer_id and the
 * seed. */
typedef struct seg_producers {
    int64_t map_end_offset;  /* the offset after the last batch that was applied */
    int64_t max_producer_id; /* the largest id that was seen; ids of removed producers count */
    int64_t count;
    int64_t room;            /* slots: a power of two, and at least twice the count; 0: none */
    int64_t open;            /* transactions */
    uint64_t seed;           /* a random number for the hash of the slots */
    seg_producer *slots;     /* a hash table by producer id; a producer lies in its own slot or the next free one */
    seg_open_txn *txns;      /* open transactions by first offset, with room for one per producer */
} seg_producers;

/* Free the table's memory. */
void seg_producers_free(seg_producers *p);
/* Copy a producer's entry: 1; 0 if it is not known. */
int64_t seg_producers_find(const seg_producers *p, int64_t producer_id, seg_producer *out);
/* Copy all producers, by id. */
void seg_producers_copy(const seg_producers *p, seg_producer *out);
/* Set a producer's entry: 0, or -ENOMEM. */
int64_t seg_producers_put(seg_producers *p, const seg_producer *e);
/* Forget a producer, and its open transaction. */
void seg_producers_remove(seg_producers *p, int64_t producer_id);
/* Apply data batches of the log from number `from` on, but not batches without a producer id or below map_end_offset;
 * `now` is the clock (ms) of their append. Returns the number of the first control batch of a producer, which is not
 * applied; n if there is none; -ENOMEM. */
int64_t seg_producers_take(seg_producers *p, const seg_batch *batches, int64_t n, int64_t from, int64_t now);
/* Apply a marker, which ends its producer's transaction. Returns the first offset of that transaction; -1 if none is
 * open; -ENOMEM. map_end_offset stays. */
int64_t seg_producers_end(seg_producers *p, const seg_batch *marker, int32_t coordinator_epoch, int64_t now);
/* Forget producers without an open transaction whose last timestamp and last append are not above `before` (ms).
 * Returns their number. */
int64_t seg_producers_expire(seg_producers *p, int64_t before);

#endif
