/* The producers with ids of a partition: their epochs, sequences and transactions (producers.c). */
#ifndef SEG_CONTRACT_PRODUCERS_H
#define SEG_CONTRACT_PRODUCERS_H

#include <stdint.h>

#include "batch.h"

enum { SEG_RETAINED = 5 }; /* batches that are kept of a producer */
enum { SEG_NO_CLOCK = -1 }; /* in place of a time in ms: the batches were read, and not appended */

/* What is kept of a data batch. */
typedef struct seg_retained {
    int64_t last_offset;
    int64_t timestamp;       /* ms */
    int32_t last_sequence;   /* -1: it has none */
    int32_t offset_delta;    /* the last less the first offset */
} seg_retained;

/* What is known of a producer (Kafka: ProducerStateEntry); -1 stands for none. */
typedef struct seg_producer {
    int64_t producer_id;     /* -1: a slot without a producer */
    int64_t last_timestamp;
    int64_t txn_first_offset; /* of its open transaction */
    int64_t appended_ms;     /* the clock when this process last appended for it, which is not in the log */
    int32_t coordinator_epoch;
    int16_t producer_epoch;
    int16_t kept;            /* the last batches of that epoch, oldest first: */
    seg_retained batches[SEG_RETAINED];
} seg_producer;

typedef struct seg_open_txn {
    int64_t first_offset;
    int64_t producer_id;
} seg_open_txn;

/* The producers up to an offset of the log. A table of zeros, but for max_producer_id and the seed, is an empty one. */
typedef struct seg_producers {
    int64_t map_end_offset;  /* behind the last batch that was taken in */
    int64_t max_producer_id; /* the largest one that was seen; those that were removed count */
    int64_t count;
    int64_t room;            /* slots: a power of two, and at least twice the count; 0: none */
    int64_t open;            /* transactions */
    uint64_t seed;           /* a random number, which decides where each producer lies */
    seg_producer *slots;     /* a hash table by producer id: each lies in the first free slot behind its own */
    seg_open_txn *txns;      /* by first offset; there is room for one of each producer */
} seg_producers;

/* Let go of the table's memory. */
void seg_producers_free(seg_producers *p);
/* Copy what is known of a producer: 1; 0 where it is not known. */
int64_t seg_producers_find(const seg_producers *p, int64_t producer_id, seg_producer *out);
/* Copy all producers, by id. */
void seg_producers_copy(const seg_producers *p, seg_producer *out);
/* Put a producer in the place of what is known of it: 0, or -ENOMEM. */
int64_t seg_producers_put(seg_producers *p, const seg_producer *e);
/* Forget a producer, and its open transaction. */
void seg_producers_remove(seg_producers *p, int64_t producer_id);
/* Take in data batches of the log from number `from` on, those without a producer id and those below map_end_offset
 * left out; `now` is the clock (ms) of their append. Returns the number of the first control batch of a producer, which
 * is not taken in; n where there is none; -ENOMEM. */
int64_t seg_producers_take(seg_producers *p, const seg_batch *batches, int64_t n, int64_t from, int64_t now);
/* Take in a marker, which ends the transaction of its producer: the first offset of that; -1 where none is open;
 * -ENOMEM. map_end_offset stays. */
int64_t seg_producers_end(seg_producers *p, const seg_batch *marker, int32_t coordinator_epoch, int64_t now);
/* Forget producers without an open transaction whose last timestamp and last append are not above `before` (ms): how
 * many. */
int64_t seg_producers_expire(seg_producers *p, int64_t before);

#endif
