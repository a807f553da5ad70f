// What an extension must not need: a C++ symbol of libtorch, a private name of CPython, a new glibc.
extern void _ZN3c105ErrorC1Ev(void);
extern int _PyLong_AsInt(void*);
extern int pthread_create(void*, const void*, void* (*)(void*), void*);  // GLIBC_2.34 since that release

int needs_them(void) {
  _ZN3c105ErrorC1Ev();
  return _PyLong_AsInt(0) + pthread_create(0, 0, 0, 0);
}
