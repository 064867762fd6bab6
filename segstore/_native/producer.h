/* Declarations for the files of the module `_producer`; producer.c has its purpose and thread contract. */
#ifndef SEG_PRODUCER_H
#define SEG_PRODUCER_H

#include "objects.h"

#include <stddef.h>
#include <structmember.h>

/* A future (future.py). `number` is the record's time in ms while the holder is a queue, and the record's number in the
 * batch afterwards. */
typedef struct {
    PyObject_HEAD
    PyObject *holder, *value, *key;
    long long number;
} Future;

/* The free memory for batches (buffer_pool.py). */
typedef struct {
    PyObject_HEAD
    PyObject *waiters;
    long long block_size, unpooled, free, made, reused;
} Pool;

/* The sender's sleep (accumulator.py). `gate` is the lock that the sender waits for. */
typedef struct {
    PyObject_HEAD
    PyObject *gate;
    char asleep;
} Gate;

/* A full batch; its records lie before those of later batches. */
typedef struct {
    Py_ssize_t n;
    long long size, block;
    double created;
} Cut;

/* A queue of records (batch.py). `in_cuts`: the records in full batches. `closed`: bytes of the open batch, once it
 * takes no more records. `held`: a thread with the producer's lock opens or seals a batch; an interrupt may leave it
 * set until the next time. `lane`: the queue's way to the log (post.c), or None. */
typedef struct {
    PyObject_HEAD
    PyObject *records, *batches, *latch, *callbacks, *lane;
    long long left, room, block, produced, closed;
    double created, cut_until;
    char rich, alone, held;
    Py_ssize_t n_cuts, room_cuts, in_cuts;
    Cut *cuts;
} Queue;

extern PyType_Spec seg_future_spec, seg_pool_spec, seg_gate_spec, seg_queue_spec;
extern PyTypeObject *seg_written_type; /* set once, when the module is made */
extern PyType_Spec seg_written_spec, seg_lane_spec, seg_post_spec;

/* Set a field to another object, or to NULL. */
static inline void put(PyObject **field, PyObject *value)
{
    Py_XINCREF(value);
    PyObject *before = *field;
    *field = value;
    Py_XDECREF(before);
}

/* The last step of a type's dealloc. */
static inline void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* End the open batch, and open another one of `room` bytes; returns whether that was done. */
int seg_cut(Queue *q, Pool *pool, long long room, double now);

/* Open a batch in an empty queue; returns whether that was done. */
int seg_open_batch(Queue *q, Pool *pool, long long room, double now);

/* Set the address of seg_tail_append, for the sender. */
PyObject *seg_bind_append(PyObject *module, PyObject *address);

/* Wake the sender; only the first thread that finds it asleep opens the gate. */
PyObject *seg_wake_sender(PyObject *gate, PyObject *nothing);

#endif
