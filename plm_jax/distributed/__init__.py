"""Multi-host jobs and the accelerators of a machine.

    hosts    processes of a job: join, agree, synchronize at barriers, lock a folder
    machine  TPUs of this machine, and the processes that use them
"""
