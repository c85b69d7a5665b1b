"""A job worker: one provider's class, served over HTTP in its own environment.

    python <path>/worker --entry module:Class --id ID (--socket PATH | --host H --port P)

Who does what, and in which thread:

      host ── HTTP ──> loop thread: server ─ auth ─ app ─ stream
                           │   ▲ wakes a stream that waits; at most once per batch
                           ▼   │
        one thread per job: job ─ context ─ events (the bounded buffer between the two)

      main thread: start ─ initialise_runtime ... shutdown_runtime ─ the exit status
      bell thread: signals, also while the main thread is inside a long call into C

`runner` knows which jobs live and which have ended; `departure` decides when the process
leaves (SIGTERM, an owner that is gone, cancels that were ignored). A job's events are
encoded in the thread that emits them; the loop only joins what waits into one chunk, so
a stream has no thread of its own and no event crosses between threads by itself.

Order at the end of a job: GPU caches are given back, then the id is free, then the
terminal event can be read. Whoever has read it finds the id free and /busy lower.

Only `app` imports litestar, only `server` uvicorn; of ours there is nothing but these
files and those of `worker_side` beside them, which are loaded by path.
"""
