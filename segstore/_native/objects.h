/* The content of Python's objects of exact types; and Python.h as all of our modules include it.
 *
 * Thread contract: the interpreter's lock is held. A pointer is valid as long as its object lives. */
#ifndef SEG_OBJECTS_H
#define SEG_OBJECTS_H

#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030A0000 /* as cffi's module: one wheel for all versions */
#endif
#include <Python.h>
#include <stdint.h>

/* The memory of bytes; NULL and -1 for None or no object. Returns whether the object is one of these. */
static inline int bytes_of(PyObject *object, const uint8_t **data, int64_t *len)
{
    *data = NULL;
    *len = -1;
    if (object == NULL || object == Py_None)
        return 1;
    if (!PyBytes_CheckExact(object))
        return 0;
    *data = (const uint8_t *)PyBytes_AsString(object);
    *len = PyBytes_Size(object);
    return 1;
}

/* An int from 0 to the largest int64, or `none` for None. Returns whether the object is one of these. */
static inline int whole_of(PyObject *object, int64_t none, int64_t *number)
{
    int overflow = 0;
    *number = none;
    if (object == Py_None)
        return 1;
    if (!PyLong_CheckExact(object))
        return 0;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow && *number >= 0;
}

/* A list or a tuple. */
typedef struct {
    PyObject *object;
    Py_ssize_t n;
    int is_list;
} items;

/* The items of a list or a tuple; no items for None. Returns whether the object is one of these. */
static inline int items_of(PyObject *object, items *of)
{
    *of = (items){object, 0, PyList_CheckExact(object)};
    if (of->is_list)
        of->n = PyList_Size(object);
    else if (PyTuple_CheckExact(object))
        of->n = PyTuple_Size(object);
    else
        return object == Py_None;
    return 1;
}

static inline PyObject *item(const items *of, Py_ssize_t i)
{
    return of->is_list ? PyList_GetItem(of->object, i) : PyTuple_GetItem(of->object, i);
}

/* Name and value of a header: a tuple of a str that UTF-8 can encode, and of bytes or None. Returns whether the object
 * is one. */
static inline int header_of(PyObject *object, const uint8_t **name, int64_t *name_len, const uint8_t **value,
                            int64_t *value_len)
{
    Py_ssize_t len;
    if (!PyTuple_CheckExact(object) || PyTuple_Size(object) != 2)
        return 0;
    PyObject *of = PyTuple_GetItem(object, 0);
    if (!PyUnicode_CheckExact(of) || !bytes_of(PyTuple_GetItem(object, 1), value, value_len))
        return 0;
    *name = (const uint8_t *)PyUnicode_AsUTF8AndSize(of, &len);
    if (*name == NULL) {
        PyErr_Clear();
        return 0;
    }
    *name_len = len;
    return 1;
}

#endif
