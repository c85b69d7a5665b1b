import signal

signal.signal(signal.SIGUSR1, signal.SIG_IGN)


class Job:
    def initialise_runtime(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)

    def run_job(self, ctx):
        pass
