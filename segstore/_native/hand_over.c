/* The thread of a directory: it writes batches that leaders in other directories hand over to followers in this one. A
 * disk that hangs blocks this thread, and an appending thread for PATIENCE at most.
 *
 * The thread does not use Python, and takes no signal. It works on jobs only: their memory is reference-counted, and
 * freed by its last user, so an abandoned write uses no freed memory, even while the process ends. The index entries
 * and the end of a written batch are stored by the holder of the tail's lock, not by the thread.
 *
 * Thread contract: any thread. A job is posted again only when it is over. Jobs are a list by compare-and-swap, with
 * the newest first; the thread takes the whole list at once. A forked process has no such thread, and posts no jobs:
 * its tails are not open (seg_tail.owner).
 *
 * The kernel may leave the thread on its appender's processor for long, because each of them sleeps while the other
 * runs, and neither can spin there. The thread is then replaced by a new one, which the kernel begins on the idlest
 * processor that this process may use.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "contract/batch.h"
#include "contract/file.h"
#include "contract/log.h"
#include "contract/threads.h"
#include "hand_over.h"
#include "relax.h"
#include "system.h"

enum { IDLE, POSTED, WRITING, OVER, CANCELLED }; /* states of a job */
enum { TURNS = 64, SMALL = 512 };     /* checks between two reads of the clock; bytes */
#define IDLE_SPIN 30000    /* ns that the thread spins for jobs: longer than from one append to the next */
#define SPIN 10000         /* ns that an appending thread spins for the end of a job */
#define PATIENCE 20000000  /* ns that an appending thread waits */
#define CLOSE 100000       /* ns between two jobs of an appending thread that does little else */
enum { FEWEST = 32, MOST = 1 << 16 }; /* such jobs on the appender's processor before the thread moves */
#define SECOND 1000000000

struct seg_disk_thread {
    seg_job *asked;
    uint32_t asleep;   /* a futex; 1: the thread waits for jobs */
    uint32_t ending;
    uint32_t ended;    /* a futex */
    int32_t owners;
    int32_t cpu;       /* the processor of its last job; -1: not known */
    int32_t spins;     /* whether this thread has a processor while it waits, which no other thread needs */
    int32_t together;  /* jobs in a row on their appender's processor, close to each other */
    int32_t bears;     /* the number of them before it moves: doubled each time, less with each job on another
                          processor */
    int64_t served;    /* the time of the last of them */
    struct seg_large *spare; /* memory for the next large job; NULL: not allocated */
};

static seg_job last;   /* marks the list of a thread that takes no more jobs */

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

/* --- memory -------------------------------------------------------------------- */

static void own(int32_t *owners)
{
    __atomic_add_fetch(owners, 1, __ATOMIC_RELAXED);
}

void seg_disk_thread_free(seg_disk_thread *d)
{
    if (d == NULL || __atomic_sub_fetch(&d->owners, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(d->spare);
    free(d);
}

seg_job *seg_job_new(seg_disk_thread *d)
{
    seg_job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return NULL;
    j->owners = 1;
    j->thread = d;
    own(&d->owners);
    return j;
}

void seg_job_free(seg_job *j)
{
    if (j == NULL || __atomic_sub_fetch(&j->owners, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    seg_disk_thread_free(j->thread);
    free(j->large);
    free(j->buf);
    free(j);
}

void seg_job_done(seg_job *j)
{
    if (j->large != NULL)
        free(__atomic_exchange_n(&j->thread->spare, j->large, __ATOMIC_ACQ_REL));
    j->large = NULL;
}

static int has_room(seg_job *j, int64_t len)
{
    int64_t room = j->room ? j->room : SMALL;
    if (len <= j->room)
        return 1;
    while (room < len)
        room *= 2;
    uint8_t *buf = realloc(j->buf, (size_t)room);
    if (buf == NULL)
        return 0;
    j->buf = buf;
    j->room = room;
    return 1;
}

/* Make room for bytes and batches; returns the memory for the bytes, or NULL. */
static uint8_t *room_for(seg_job *j, int64_t len, int64_t n)
{
    if (n <= SEG_FEW && len <= SEG_ONE_ROOM)
        return has_room(j, len) ? j->buf : NULL;
    if (n > SEG_HANDED || len > SEG_HANDED_ROOM)
        return NULL;
    j->large = __atomic_exchange_n(&j->thread->spare, NULL, __ATOMIC_ACQ_REL);
    if (j->large == NULL)
        j->large = malloc(sizeof *j->large);
    return j->large ? j->large->buf : NULL;
}

/* --- the thread ------------------------------------------------------------------ */

/* Whether this thread runs on that processor, where another thread was seen, which can't run while this one spins. */
static int is_here(int32_t cpu)
{
    return cpu >= 0 && cpu == processor();
}

/* Note on which processor a job finds the thread. */
static void note_place(seg_disk_thread *d, const seg_job *j)
{
    int here = is_here(j->cpu);
    __atomic_store_n(&d->cpu, processor(), __ATOMIC_RELAXED);
    d->spins = j->two_cpus && !here;
    if (!j->two_cpus || !here) {
        d->together = 0;
        d->bears -= d->bears > FEWEST;
        return;
    }
    int64_t now = clock_ns();
    d->together = now - d->served < CLOSE ? d->together + 1 : 0;
    d->served = now;
}

static void write_job(seg_job *j)
{
    uint32_t posted = POSTED;
    if (!__atomic_compare_exchange_n(&j->state, &posted, WRITING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return; /* cancelled */
    const uint8_t *buf = j->large ? j->large->buf : j->buf;
    j->result = (j->write ? j->write : seg_pwritev)(j->fd, &buf, &j->len, 1, j->position);
    __atomic_store_n(&j->state, OVER, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&j->waited, __ATOMIC_SEQ_CST))
        futex_wake(&j->state, INT32_MAX, SEG_OF_THREADS);
}

/* Write jobs of a list that has the newest first. */
static void serve(seg_disk_thread *d, seg_job *newest)
{
    seg_job *first = NULL, *next;
    for (; newest != NULL; newest = next) {
        next = newest->next;
        newest->next = first;
        first = newest;
    }
    for (; first != NULL; first = next) {
        next = first->next; /* before the job is over: it may be posted again then */
        note_place(d, first);
        write_job(first);
        seg_job_free(first);
    }
}

static int is_asked(const seg_disk_thread *d)
{
    return __atomic_load_n(&d->asked, __ATOMIC_SEQ_CST) != NULL || __atomic_load_n(&d->ending, __ATOMIC_SEQ_CST);
}

static void await_jobs(seg_disk_thread *d)
{
    for (int64_t end = d->spins ? clock_ns() + IDLE_SPIN : 0; end && clock_ns() < end;)
        for (int i = 0; i < TURNS; i++, relax())
            if (__atomic_load_n(&d->asked, __ATOMIC_RELAXED) != NULL)
                return;
    __atomic_store_n(&d->asleep, 1, __ATOMIC_SEQ_CST);
    if (!is_asked(d)) /* a posting thread checks afterwards whether this one sleeps */
        futex_wait(&d->asleep, 1, NULL, SEG_OF_THREADS);
    __atomic_store_n(&d->asleep, 0, __ATOMIC_SEQ_CST);
}

static void wake(seg_disk_thread *d)
{
    if (__atomic_load_n(&d->asleep, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&d->asleep, 0, __ATOMIC_SEQ_CST))
        futex_wake(&d->asleep, 1, SEG_OF_THREADS);
}

static void *run(void *argument);

static int start(seg_disk_thread *d)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, d);
    if (!error)
        pthread_detach(thread);
    return error;
}

/* Whether another thread has replaced this one. */
static int has_moved(seg_disk_thread *d)
{
    if (d->together < d->bears)
        return 0;
    d->together = 0;
    d->bears = d->bears < MOST ? 2 * d->bears : MOST;
    return start(d) == 0;
}

static void *run(void *argument)
{
    seg_disk_thread *d = argument;
    name_thread("segstore-disk");
    while (!__atomic_load_n(&d->ending, __ATOMIC_ACQUIRE)) {
        if (has_moved(d))
            return NULL;
        seg_job *jobs = __atomic_exchange_n(&d->asked, NULL, __ATOMIC_ACQUIRE);
        if (jobs != NULL)
            serve(d, jobs);
        else
            await_jobs(d);
    }
    serve(d, __atomic_exchange_n(&d->asked, &last, __ATOMIC_ACQ_REL));
    __atomic_store_n(&d->ended, 1, __ATOMIC_RELEASE);
    futex_wake(&d->ended, INT32_MAX, SEG_OF_THREADS);
    seg_disk_thread_free(d);
    return NULL;
}

seg_disk_thread *seg_disk_thread_start(void)
{
    seg_disk_thread *d = calloc(1, sizeof *d);
    sigset_t all, before;
    if (d == NULL)
        return NULL;
    d->cpu = -1;
    d->bears = FEWEST;
    d->owners = 2; /* the caller, and the thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = start(d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(d);
        return NULL;
    }
    return d;
}

int64_t seg_disk_thread_end(seg_disk_thread *d, int64_t timeout_ns)
{
    struct timespec end = timespec_of(clock_ns() + timeout_ns);
    __atomic_store_n(&d->ending, 1, __ATOMIC_SEQ_CST);
    wake(d);
    while (!__atomic_load_n(&d->ended, __ATOMIC_ACQUIRE))
        if (futex_wait_until(&d->ended, 0, &end, SEG_OF_THREADS) < 0 && errno != EAGAIN)
            return __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);
    return 1;
}

/* --- posting --------------------------------------------------------------------- */

/* Add a job to the list: 0 if the thread takes no more. */
static int add(seg_disk_thread *d, seg_job *j)
{
    seg_job *newest = __atomic_load_n(&d->asked, __ATOMIC_RELAXED);
    do {
        if (newest == &last)
            return 0;
        j->next = newest;
    } while (!__atomic_compare_exchange_n(&d->asked, &newest, j, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return 1;
}

int64_t seg_job_post(seg_job *j, const seg_tail *f, const uint8_t *buf, int64_t len, const seg_batch *batches,
                     int64_t n, int64_t moved, int32_t two_cpus)
{
    uint8_t *to = room_for(j, len, n);
    if (to == NULL)
        return -ENOMEM;
    seg_batch *headers = j->large ? j->large->batches : j->batches;
    memcpy(to, buf, (size_t)len);
    memcpy(headers, batches, (size_t)n * sizeof *batches);
    for (int64_t i = 0; i < n; i++)
        headers[i].position += moved;
    j->fd = f->fd;
    j->write = f->write;
    j->position = f->active->end->position;
    j->len = len;
    j->n = n;
    j->cpu = processor();
    j->two_cpus = two_cpus;
    j->spins = two_cpus && !is_here(__atomic_load_n(&j->thread->cpu, __ATOMIC_RELAXED));
    __atomic_store_n(&j->waited, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&j->state, POSTED, __ATOMIC_RELAXED);
    own(&j->owners);
    if (!add(j->thread, j)) {
        __atomic_store_n(&j->state, CANCELLED, __ATOMIC_RELAXED);
        seg_job_done(j);
        seg_job_free(j);
        return -ECANCELED;
    }
    wake(j->thread);
    return 0;
}

int seg_job_is_over(const seg_job *j, int64_t *result)
{
    uint32_t state = __atomic_load_n(&j->state, __ATOMIC_ACQUIRE);
    *result = state == OVER ? j->result : -ECANCELED;
    return state == OVER || state == CANCELLED;
}

/* Wait for the end of the write: 0; else the answer of futex_wait. */
static int64_t await_change(seg_job *j, const struct timespec *end)
{
    int64_t result;
    while (!seg_job_is_over(j, &result)) {
        __atomic_store_n(&j->waited, 1, __ATOMIC_SEQ_CST);
        uint32_t state = __atomic_load_n(&j->state, __ATOMIC_SEQ_CST);
        if (state != POSTED && state != WRITING)
            continue;
        int64_t done = end ? futex_wait_until(&j->state, state, end, SEG_OF_THREADS)
                           : futex_wait(&j->state, state, NULL, SEG_OF_THREADS);
        if (done < 0 && (errno == ETIMEDOUT || (errno == EINTR && end == NULL)))
            return -errno;
    }
    return 0;
}

int64_t seg_job_await_end(seg_job *j)
{
    return await_change(j, NULL);
}

int seg_job_await(seg_job *j, int64_t *deadline, int64_t *result)
{
    uint32_t posted = POSTED;
    do /* mostly the job is over before the clock is read */
        for (int i = 0; j->spins && i < TURNS; i++, relax())
            if (seg_job_is_over(j, result))
                return 1;
    while (*deadline = *deadline ? *deadline : clock_ns() + PATIENCE,
           j->spins && clock_ns() < *deadline - PATIENCE + SPIN);
    struct timespec until = timespec_of(*deadline);
    if (await_change(j, &until) == -ETIMEDOUT)
        __atomic_compare_exchange_n(&j->state, &posted, CANCELLED, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return seg_job_is_over(j, result);
}
