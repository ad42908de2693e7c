; See parallel_launch.py, which replaces @PAUSE@, @SPINS@ and @YIELDS@ and describes the states of a slot.

; Of a task: state, function, data, environment, then on a cache line of its own whether the worker sleeps, and where.
%environment = type { ptr, i32 }
%slot = type { i64, ptr, ptr, %environment, [24 x i8], i32, [7 x i64] }
; Number of threads of a call, the caller included; number of threads that still use the pool. Slots follow.
%pool = type { i32, i32, [120 x i8] }

@key = internal global i32 0
@message = private constant [45 x i8] c"a worker failed in a parallel part of a call\00"
@kind = private constant [13 x i8] c"RuntimeError\00"

declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @sched_yield()
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
declare ptr @aligned_alloc(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @free(ptr)
declare i32 @TVMBackendParallelLaunch(ptr, ptr, i32)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)

; The interface of TVMBackendParallelLaunch.
define i32 @felixlike_launch(ptr %lambda, ptr %data, i32 %wanted) {
entry:
  %environment = alloca %environment
  %key = load i32, ptr @key
  %pool = call ptr @pthread_getspecific(i32 %key)
  %none = icmp eq ptr %pool, null
  %special = icmp ne i32 %wanted, 0
  %elsewhere = or i1 %none, %special
  br i1 %elsewhere, label %tvm, label %here
tvm:
  %answer = tail call i32 @TVMBackendParallelLaunch(ptr %lambda, ptr %data, i32 %wanted)
  ret i32 %answer
here:
  %threads = load i32, ptr %pool
  store ptr null, ptr %environment
  %environment_tasks = getelementptr %environment, ptr %environment, i32 0, i32 1
  store i32 %threads, ptr %environment_tasks
  %slots = getelementptr %pool, ptr %pool, i32 1
  %alone = icmp slt i32 %threads, 2
  br i1 %alone, label %own, label %publish
publish:
  %i = phi i32 [ 1, %here ], [ %i_next, %published ]
  %i_place = sub i32 %i, 1
  %slot = getelementptr %slot, ptr %slots, i32 %i_place
  %old = load atomic i64, ptr %slot monotonic, align 8
  %up = add i64 %old, 3
  %base = and i64 %up, -4
  %open = or i64 %base, 1
  %slot_lambda = getelementptr %slot, ptr %slot, i32 0, i32 1
  %slot_data = getelementptr %slot, ptr %slot, i32 0, i32 2
  %slot_tasks = getelementptr %slot, ptr %slot, i32 0, i32 3, i32 1
  store ptr %lambda, ptr %slot_lambda
  store ptr %data, ptr %slot_data
  store i32 %threads, ptr %slot_tasks
  store atomic i64 %open, ptr %slot seq_cst, align 8
  %slot_asleep = getelementptr %slot, ptr %slot, i32 0, i32 5
  %asleep = load atomic i32, ptr %slot_asleep seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %wake, label %published
wake:
  call void @wake(ptr %slot)
  br label %published
published:
  %i_next = add i32 %i, 1
  %more = icmp slt i32 %i_next, %threads
  br i1 %more, label %publish, label %own
own:
  %first = call i32 %lambda(i32 0, ptr %environment, ptr %data)
  br i1 %alone, label %exit, label %settle
settle:
  %j = phi i32 [ 1, %own ], [ %j_next, %settled ]
  %worst = phi i32 [ %first, %own ], [ %worst_next, %settled ]
  %j_place = sub i32 %j, 1
  %task = getelementptr %slot, ptr %slots, i32 %j_place
  %seen = load atomic i64, ptr %task acquire, align 8
  %bits = and i64 %seen, 3
  %begun = icmp ne i64 %bits, 1
  br i1 %begun, label %test, label %claim
claim:
  %claimed = add i64 %seen, 1
  %pair = cmpxchg ptr %task, i64 %seen, i64 %claimed acq_rel acquire
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %take, label %test
take:
  %taken = call i32 %lambda(i32 %j, ptr %environment, ptr %data)
  %after = add i64 %seen, 3
  store atomic i64 %after, ptr %task release, align 8
  br label %settled
test:
  %waited = phi i32 [ 0, %settle ], [ 0, %claim ], [ %waited_next, %waiting ]
  %now = load atomic i64, ptr %task acquire, align 8
  %now_bits = and i64 %now, 3
  %running = icmp eq i64 %now_bits, 2
  br i1 %running, label %wait, label %done
wait:
  %waited_next = add i32 %waited, 1
  %patient = icmp ult i32 %waited, @SPINS@
  br i1 %patient, label %pause, label %yield
pause:
  call void asm sideeffect "@PAUSE@", "~{memory}"()
  br label %waiting
yield:
  %yielded = call i32 @sched_yield()
  br label %waiting
waiting:
  br label %test
done:
  %failed = icmp eq i64 %now_bits, 3
  br i1 %failed, label %fail, label %settled
fail:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @message)
  br label %settled
settled:
  %result = phi i32 [ %taken, %take ], [ 0, %done ], [ -1, %fail ]
  %worst_next = or i32 %worst, %result
  %j_next = add i32 %j, 1
  %others = icmp slt i32 %j_next, %threads
  br i1 %others, label %settle, label %exit
exit:
  %final = phi i32 [ %first, %own ], [ %worst_next, %settled ]
  ret i32 %final
}

; Wake the worker of a slot, which has said that it sleeps.
define internal void @wake(ptr %slot) noinline {
  %asleep = getelementptr %slot, ptr %slot, i32 0, i32 5
  %old = atomicrmw xchg ptr %asleep, i32 0 seq_cst
  %sleeps = icmp ne i32 %old, 0
  br i1 %sleeps, label %post, label %exit
post:
  %semaphore = getelementptr %slot, ptr %slot, i32 0, i32 6
  %ignored = call i32 @sem_post(ptr %semaphore)
  br label %exit
exit:
  ret void
}

; Run the tasks of a slot until its pool is closed.
define void @felixlike_work(ptr %pool, i32 %task) {
entry:
  %slots = getelementptr %pool, ptr %pool, i32 1
  %place = sub i32 %task, 1
  %slot = getelementptr %slot, ptr %slots, i32 %place
  %slot_lambda = getelementptr %slot, ptr %slot, i32 0, i32 1
  %slot_data = getelementptr %slot, ptr %slot, i32 0, i32 2
  %environment = getelementptr %slot, ptr %slot, i32 0, i32 3
  %asleep = getelementptr %slot, ptr %slot, i32 0, i32 5
  %semaphore = getelementptr %slot, ptr %slot, i32 0, i32 6
  br label %look
look:
  %waited = phi i32 [ 0, %entry ], [ %next, %pause ], [ %next, %yield ], [ 0, %lost ], [ 0, %finish ], [ 0, %awake ]
  %state = load atomic i64, ptr %slot acquire, align 8
  %bits = and i64 %state, 3
  %open = icmp eq i64 %bits, 1
  br i1 %open, label %claim, label %idle
claim:
  %claimed = add i64 %state, 1
  %pair = cmpxchg ptr %slot, i64 %state, i64 %claimed acq_rel acquire
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %run, label %lost
lost:
  br label %look
run:
  %lambda = load ptr, ptr %slot_lambda
  %data = load ptr, ptr %slot_data
  %result = call i32 %lambda(i32 %task, ptr %environment, ptr %data)
  %good = icmp eq i32 %result, 0
  %steps = select i1 %good, i64 3, i64 2
  %after = add i64 %state, %steps
  br label %finish
finish:
  store atomic i64 %after, ptr %slot release, align 8
  br label %look
idle:
  %closed = icmp slt i64 %state, 0
  br i1 %closed, label %leave, label %wait
wait:
  %next = add i32 %waited, 1
  %busily = icmp ult i32 %waited, @SPINS@
  br i1 %busily, label %pause, label %patience
pause:
  call void asm sideeffect "@PAUSE@", "~{memory}"()
  br label %look
patience:
  %awhile = icmp ult i32 %waited, @YIELDS@
  br i1 %awhile, label %yield, label %sleep
yield:
  %yielded = call i32 @sched_yield()
  br label %look
sleep:
  store atomic i32 1, ptr %asleep seq_cst, align 4
  %again = load atomic i64, ptr %slot seq_cst, align 8
  %same = icmp eq i64 %again, %state
  br i1 %same, label %down, label %up
down:
  %woken = call i32 @sem_wait(ptr %semaphore)
  br label %up
up:
  %was = atomicrmw xchg ptr %asleep, i32 0 seq_cst
  br label %awake
awake:
  br label %look
leave:
  call void @release(ptr %pool)
  ret void
}

; Let go of a pool. The last one, of its workers and its thread, frees it.
define internal void @release(ptr %pool) {
entry:
  %users = getelementptr %pool, ptr %pool, i32 0, i32 1
  %before = atomicrmw sub ptr %users, i32 1 acq_rel
  %last = icmp eq i32 %before, 1
  br i1 %last, label %free, label %exit
free:
  call void @free(ptr %pool)
  br label %exit
exit:
  ret void
}

; Make a pool of the calling thread for a number of workers. It ends with the thread.
define ptr @felixlike_open(i32 %workers) {
entry:
  %wide = zext i32 %workers to i64
  %parts = add i64 %wide, 1
  %bytes = mul i64 %parts, 128
  %pool = call ptr @aligned_alloc(i64 128, i64 %bytes)
  %failed = icmp eq ptr %pool, null
  br i1 %failed, label %exit, label %fill
fill:
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %bytes, i1 false)
  store i32 1, ptr %pool
  %users = getelementptr %pool, ptr %pool, i32 0, i32 1
  %all = add i32 %workers, 1
  store i32 %all, ptr %users
  %slots = getelementptr %pool, ptr %pool, i32 1
  br label %test
test:
  %i = phi i32 [ 0, %fill ], [ %next, %body ]
  %more = icmp slt i32 %i, %workers
  br i1 %more, label %body, label %keep
body:
  %semaphore = getelementptr %slot, ptr %slots, i32 %i, i32 6
  %ignored = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  %next = add i32 %i, 1
  br label %test
keep:
  %key = load i32, ptr @key
  %kept = call i32 @pthread_setspecific(i32 %key, ptr %pool)
  br label %exit
exit:
  ret ptr %pool
}

; End the workers of a pool when its thread ends.
define void @felixlike_close(ptr %pool) {
entry:
  %users = getelementptr %pool, ptr %pool, i32 0, i32 1
  %all = load atomic i32, ptr %users acquire, align 4
  %workers = sub i32 %all, 1
  %slots = getelementptr %pool, ptr %pool, i32 1
  br label %test
test:
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i32 %i, %workers
  br i1 %more, label %body, label %exit
body:
  %slot = getelementptr %slot, ptr %slots, i32 %i
  %next = add i32 %i, 1
  store atomic i64 -4, ptr %slot seq_cst, align 8
  call void @wake(ptr %slot)
  br label %test
exit:
  call void @release(ptr %pool)
  ret void
}

; Functions that TVM's loader can call. They return the addresses of those above.
define i32 @__tvm_ffi_launch(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %failed = call i32 @pthread_key_create(ptr @key, ptr @felixlike_close)
  call void @return(ptr %result, ptr @felixlike_launch)
  ret i32 %failed
}
define i32 @__tvm_ffi_work(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  call void @return(ptr %result, ptr @felixlike_work)
  ret i32 0
}
define i32 @__tvm_ffi_open(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  call void @return(ptr %result, ptr @felixlike_open)
  ret i32 0
}
define internal void @return(ptr %result, ptr %address) {
  %number = ptrtoint ptr %address to i64
  %value = getelementptr { i32, i32, i64 }, ptr %result, i32 0, i32 2
  store i32 1, ptr %result
  store i64 %number, ptr %value
  ret void
}
