"""Multi-host jobs, the accelerators of a machine, and its worker processes.

    hosts        processes of a job: join, agree, synchronize at barriers, lock a folder
    machine      TPUs of this machine, and the processes that use them
    worker_pool  worker processes of preparing and cleaning text
"""
