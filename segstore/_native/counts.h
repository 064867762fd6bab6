/* The counts of an API's requests, which C and Python add to.
 *
 * Thread contract: one thread counts; any reads.
 */
#ifndef SEG_COUNTS_H
#define SEG_COUNTS_H

#include "clock.h"
#include "contract/exchange.h"

/* Count a request that was taken up at `begun`, in seconds of CLOCK_MONOTONIC, and is answered now. */
static inline void count_request(seg_counts *c, int64_t received, int64_t sent, double begun)
{
    double seconds = clock_seconds() - begun;
    int n = 0;
    while (n < SEG_BOUNDS && seconds > c->bounds[n])
        n++;
    c->times[n]++;
    c->seconds += seconds;
    c->received += received;
    c->sent += sent;
}

#endif
