"""Programs that try to harm: each must end within its limits, reach nothing, and leave the next program unharmed.

Every attempt goes through `attempt`, which prints REACHED if it was not refused; no output may have that word. Words
like @SECRET_FILE@ are replaced by what the test has set up outside (see world.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from groupwise.sandbox import ProgramLimits, ProgramStatus

PRELUDE = """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
is_intel = platform.machine() == "x86_64"

def attempt(name, action, *arguments):
    try:
        result = action(*arguments)
    except BaseException as error:
        print("refused", name, type(error).__name__)
    else:
        print("REACHED", name, result)

def raw(name, intel, arm, *arguments):
    number = intel if is_intel else arm
    if number is None:
        return
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        print("refused", name, ctypes.get_errno())
    else:
        print("REACHED", name, result)
        if "fork" in name or "clone" in name:
            os._exit(0)
"""

QUICK = ProgramLimits(seconds=0.25, wall_seconds=20.0, memory_mb=64)
FILLING = ProgramLimits(seconds=2.0, wall_seconds=20.0, memory_mb=64)
"""For what has to touch all its memory before it is refused: on a busy machine that takes longer than a moment."""
SLEEPY = ProgramLimits(seconds=0.25, wall_seconds=0.6, memory_mb=64)

OK, FAILED, TIMED_OUT = ProgramStatus.OK, ProgramStatus.FAILED, ProgramStatus.TIMED_OUT
OUT_OF_MEMORY, OUTPUT_LIMIT, KILLED = ProgramStatus.OUT_OF_MEMORY, ProgramStatus.OUTPUT_LIMIT, ProgramStatus.KILLED


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    source: str
    ends: tuple[ProgramStatus, ...] = (OK,)
    """How it may end."""
    limits: ProgramLimits = QUICK
    says: str = ""
    """What stdout must contain."""

    @property
    def program(self) -> str:
        return PRELUDE + self.source


BOMBS = (
    Attack("fork bomb", "while True:\n    os.fork()", (FAILED,)),
    Attack("fork", "attempt('fork', os.fork)\nattempt('forkpty', os.forkpty)"),
    Attack("raw fork", "raw('fork', 57, None)\nraw('vfork-like', 56, 220, 0x4111, 0, 0, 0, 0)"),
    Attack("raw clone", "raw('clone', 56, 220, 17, 0, 0, 0, 0)\nraw('clone3', 435, 435, b'\\0' * 88, 88)"),
    Attack(
        "thread bomb",
        "import threading, time\n"
        "for i in range(1000):\n    attempt('thread', threading.Thread(target=time.sleep, args=(9,)).start)",
    ),
    Attack("heap bomb", "x = []\nwhile True:\n    x.append(bytearray(1 << 20))", (OUT_OF_MEMORY,), limits=FILLING),
    Attack("doubling list", "x = [0]\nwhile True:\n    x += x", (OUT_OF_MEMORY,), limits=FILLING),
    Attack(
        "mmap bomb", "import mmap\nx = []\nwhile True:\n    x.append(mmap.mmap(-1, 1 << 24))", (FAILED, OUT_OF_MEMORY)
    ),
    Attack(
        "raw mmap bomb",
        "libc.mmap.restype = ctypes.c_void_p\nn = 0\n"
        "while libc.mmap(None, ctypes.c_size_t(1 << 24), 3, 0x4022, -1, 0) not in (2**64 - 1, -1, None):\n"
        "    n += 1\n    assert n < 1000\nprint('mapped', n < 6)",
        says="mapped True",
    ),
    Attack("big int bomb", "x = 9 ** 9 ** 9", (TIMED_OUT, OUT_OF_MEMORY)),
    Attack("big int text", "sys.set_int_max_str_digits(0)\nprint(len(str(7 ** 5_000_000)))", (TIMED_OUT,)),
    Attack("infinite loop", "while True:\n    pass", (TIMED_OUT,)),
    Attack("infinite loop in C", "import itertools\nsum(itertools.repeat(0))", (TIMED_OUT,)),
    Attack("sleep", "import time\ntime.sleep(1000)", (TIMED_OUT,), SLEEPY),
    Attack("wait for input", "import select\nselect.select([], [], [])", (TIMED_OUT,), SLEEPY),
    Attack("recursion", "def f():\n    return f()\nf()", (FAILED,)),
    Attack(
        "recursion without limit",
        "sys.setrecursionlimit(10 ** 9)\ndef f(x):\n    return repr([f(x)])\nclass A:\n"
        "    def __repr__(self):\n        return repr([self])\nrepr(A())",
        (KILLED, FAILED, OUT_OF_MEMORY, TIMED_OUT),
    ),
    Attack("deep nesting freed", "x = []\nfor i in range(10 ** 5):\n    x = [x]\ndel x\nprint('freed')", says="freed"),
    Attack("regex bomb", "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')", (TIMED_OUT,)),
    Attack("parser bomb", "eval('(' * 100_000 + ')' * 100_000)", (FAILED, KILLED, OUT_OF_MEMORY, OUTPUT_LIMIT)),
    Attack("parser bomb of minus", "eval('-' * 500_000 + '1')", (FAILED, KILLED, OUT_OF_MEMORY, TIMED_OUT)),
    Attack("compiler bomb", "compile('1' + '+1' * 200_000, 'x', 'eval')", (FAILED, KILLED, OUT_OF_MEMORY, TIMED_OUT)),
    Attack("stdout flood", "while True:\n    sys.stdout.write('x' * 4096)", (OUTPUT_LIMIT,)),
    Attack("stderr flood", "while True:\n    os.write(2, b'x' * 4096)", (OUTPUT_LIMIT,)),
    Attack("flood then end", "os.write(1, b'x' * 65536)\nos.write(1, b'y')", (OUTPUT_LIMIT,)),
    Attack(
        "descriptor exhaustion",
        "held = []\ntry:\n    while True:\n        held.append(os.dup(1))\nexcept OSError:\n    pass\n"
        "print(len(held) < 200)",
        says="True",
    ),
    Attack("pipes", "attempt('pipe', os.pipe)\nraw('pipe2', 293, 59, (ctypes.c_int * 2)(), 0)"),
    Attack(
        "disk bomb",
        "for folder in ('/', '/tmp', '/var/tmp', '/dev/shm', '/run', '@WRITABLE@', '.'):\n"
        "    attempt('make in ' + folder, os.open, folder + '/bomb', os.O_CREAT | os.O_RDONLY)\n"
        "    attempt('write in ' + folder, lambda: open(folder + '/bomb', 'wb').write(b'x' * (1 << 20)))",
    ),
    Attack(
        "inode bomb",
        "for i in range(100):\n    attempt('folder', os.mkdir, '@WRITABLE@/%d' % i)\n"
        "    attempt('fifo', os.mkfifo, '/tmp/fifo%d' % i)",
    ),
    Attack("memory file", "attempt('memfd', os.memfd_create, 'x')\nraw('memfd', 319, 279, b'x', 0)"),
    Attack("stop itself", "import signal\nattempt('stop', os.kill, os.getpid(), signal.SIGSTOP)"),
    Attack(
        "ignore all signals",
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        (TIMED_OUT,),
    ),
    Attack(
        "block all signals and sleep",
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\ntime.sleep(1000)",
        (TIMED_OUT,),
        SLEEPY,
    ),
    Attack(
        "raise its own limits",
        "import resource\nfor kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, "
        "resource.RLIMIT_FSIZE):\n"
        "    attempt('limit', resource.setrlimit, kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "x = bytearray(1 << 28)",
        (OUT_OF_MEMORY,),
    ),
    Attack(
        "swallow MemoryError for ever",
        "while True:\n    try:\n        x = bytearray(1 << 30)\n    except MemoryError:\n        pass",
        (TIMED_OUT,),
    ),
)

NETWORK = (
    Attack("tcp", "import socket\nattempt('tcp', socket.create_connection, ('127.0.0.1', @PORT@), 1)"),
    Attack("udp", "import socket\nattempt('udp', socket.socket, socket.AF_INET, socket.SOCK_DGRAM)"),
    Attack("ipv6", "import socket\nattempt('ipv6', socket.socket, socket.AF_INET6)"),
    Attack(
        "dns",
        "import socket\nattempt('dns', socket.getaddrinfo, 'example.org', 80)\n"
        "attempt('host', socket.gethostbyname, 'localhost')",
    ),
    Attack(
        "unix socket",
        "import socket\nfor path in ('@SOCKET@', '\\0@ABSTRACT@', '/run/docker.sock'):\n"
        "    attempt('unix', lambda: socket.socket(socket.AF_UNIX).connect(path))\n"
        "attempt('pair', socket.socketpair)",
    ),
    Attack(
        "netlink and packet",
        "import socket\nattempt('netlink', socket.socket, 16, socket.SOCK_RAW, 0)\n"
        "attempt('packet', socket.socket, 17, socket.SOCK_RAW, 0)\n"
        "attempt('vsock', socket.socket, 40, socket.SOCK_STREAM)",
    ),
    Attack(
        "raw sockets calls",
        "raw('socket', 41, 198, 2, 1, 0)\nraw('socketpair', 53, 199, 1, 1, 0, (ctypes.c_int * 2)())\n"
        "raw('connect', 42, 203, 0, b'\\2\\0' + b'\\0' * 14, 16)\nraw('sendto', 44, 206, 1, b'x', 1, 0, 0, 0)\n"
        "raw('io_uring', 425, 425, 8, b'\\0' * 120)\nraw('bpf', 321, 280, 0, b'\\0' * 120, 120)",
    ),
)

FILES = (
    Attack(
        "host files",
        "for path in ('/etc/passwd', '/etc/shadow', '/etc/hostname', '@SECRET_FILE@', '@REPO@/pyproject.toml', "
        "'@REPO@/src/groupwise/__init__.py', os.path.expanduser('~/.bashrc'), '/root/.bashrc', '/sys/kernel/mm', "
        "'/dev/mem', '/dev/sda', '/dev/tty', '/dev/kmsg', '/var/log/dpkg.log', '/boot'):\n"
        "    attempt(path, lambda: open(path).read())\n    attempt('list ' + path, os.listdir, path)",
    ),
    Attack(
        "raw open",
        "for path in (b'/etc/passwd', b'@SECRET_FILE@'):\n    raw('open', 2, None, path, 0)\n"
        "    raw('openat', 257, 56, -100, path, 0)\n    raw('openat2', 437, 437, -100, path, b'\\0' * 24, 24)\n"
        "    raw('by handle', 304, 265, -100, b'\\0' * 64, 0)",
    ),
    Attack(
        "leave the root",
        "for path in ('/../../../../../../etc/passwd', '../../../etc/passwd', '/proc/1/root/etc/passwd', "
        "'/proc/self/root/etc/passwd'):\n    attempt(path, lambda: open(path).read())\n"
        "attempt('chroot', os.chroot, '/')\nraw('pivot', 155, 41, b'/', b'/')\n"
        "attempt('path only', os.open, '/', os.O_PATH)\n"
        "attempt('fchdir', os.fchdir, os.open(os.path.dirname(os.__file__), os.O_RDONLY))",
    ),
    Attack(
        "installed packages",
        "import glob\n"
        "for folder in [p + '/site-packages' for p in sys.path] + [p + '/dist-packages' for p in sys.path]:\n"
        "    sys.path.append(folder)\n    for path in glob.glob(folder + '/*/*.py')[:3]:\n"
        "        attempt(path, lambda: open(path).read())\n"
        "attempt('pip', __import__, 'pip')\nattempt('groupwise', __import__, 'groupwise')",
    ),
    Attack(
        "environment",
        "import subprocess\nprint(dict(os.environ), os.environb)\n"
        "environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\n"
        "print([environ[0]] if environ else 'none')\nattempt('environ', lambda: open('/proc/self/environ').read())",
    ),
    Attack(
        "proc of the owner",
        "for pid in ('self', '1', '@OWNER@', str(os.getppid()), 'thread-self'):\n"
        "    for name in ('environ', 'cmdline', 'maps', 'mem', 'status', 'fd/4', 'root/etc/passwd'):\n"
        "        attempt(pid + name, lambda: open('/proc/%s/%s' % (pid, name), 'rb').read(100))\n"
        "    attempt('list ' + pid, os.listdir, '/proc/%s/fd' % pid)\nattempt('list', os.listdir, '/proc')",
    ),
    Attack(
        "read other memory",
        "for pid in (@OWNER@, os.getppid(), @CANARY@):\n    raw('process_vm_readv', 310, 270, pid, 0, 0, 0, 0, 0)\n"
        "    raw('process_vm_writev', 311, 271, pid, 0, 0, 0, 0, 0)\n    raw('ptrace', 101, 117, 16, pid, 0, 0)\n"
        "    raw('pidfd_open', 434, 434, pid, 0)\n    raw('pidfd_getfd', 438, 438, 5, 0, 0)\n"
        "    raw('kcmp', 312, 272, pid, pid, 0, 0, 0)",
    ),
    Attack(
        "inherited descriptors",
        "for fd in range(3, 1024):\n    try:\n        os.fstat(fd)\n    except OSError:\n        continue\n"
        "    print('REACHED descriptor', fd)",
    ),
    Attack(
        "change files",
        "for path in ('@SECRET_FILE@', os.__file__, '/etc/passwd', '/dev/null', '/'):\n"
        "    attempt('write', lambda: os.open(path, os.O_WRONLY) if path != '/dev/null' else 1 / 0)\n"
        "    attempt('empty', os.open, path, os.O_RDONLY | os.O_TRUNC)\n    attempt('truncate', os.truncate, path, 0)\n"
        "    attempt('chmod', os.chmod, path, 0o777)\n    attempt('chown', os.chown, path, os.getuid(), os.getgid())\n"
        "    attempt('utime', os.utime, path)\n    attempt('unlink', os.unlink, path)\n"
        "    attempt('rename', os.rename, path, path + 'x')\n"
        "    attempt('xattr', os.setxattr, path, 'user.x', b'x')\n"
        "raw('fallocate', 285, 47, 1, 0, 0, 1 << 20)\nraw('ftruncate', 77, 46, 0, 0)\n"
        "raw('write input', 18, 68, 0, b'x', 1, 0)",
    ),
    Attack(
        "open neither to read nor to write",
        "for path in ('@SECRET_FILE@', '@WRITABLE@/left', os.__file__):\n"
        "    for flags in (0, os.O_TRUNC, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_APPEND):\n"
        "        attempt('mode 3', os.open, path, os.O_ACCMODE | flags)\n"
        "    attempt('empty', os.open, path, os.O_TRUNC | os.O_CLOEXEC)\n"
        "    attempt('make', os.open, path, os.O_CREAT)\n    attempt('path only', os.open, path, os.O_PATH)",
    ),
    Attack(
        "links",
        "for folder in ('/tmp', '@WRITABLE@', '/', '.'):\n"
        "    attempt('symlink', os.symlink, '/etc/passwd', folder + '/link')\n"
        "    attempt('link', os.link, '@SECRET_FILE@', folder + '/hard')\n"
        "attempt('readlink', os.readlink, '/proc/self/exe')",
    ),
    Attack(
        "mounts and namespaces",
        "for flags in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x10020000):\n"
        "    attempt('unshare', lambda: 1 / (libc.unshare(flags) == 0))\nraw('setns', 308, 268, 0, 0)\n"
        "raw('mount', 165, 40, b'tmpfs', b'/tmp', b'tmpfs', 0, 0)\nraw('remount', 165, 40, b'/', b'/', 0, 32, 0)\n"
        "raw('umount', 166, 39, b'/', 2)\nraw('mount_setattr', 442, 442, -100, b'/', 0, b'\\0' * 32, 32)\n"
        "raw('open_tree', 428, 428, -100, b'/', 1)\nraw('fsopen', 430, 430, b'tmpfs', 0)",
    ),
    Attack(
        "shared memory",
        "from multiprocessing import shared_memory\n"
        "attempt('shm', shared_memory.SharedMemory, 'left', True, 4096)\nraw('shmget', 29, 194, 1234, 4096, 0o1666)\n"
        "raw('msgget', 68, 186, 1234, 0o1666)\nraw('semget', 64, 190, 1234, 1, 0o1666)\n"
        "raw('mq_open', 240, 180, b'left', 0o102, 0o666, 0)\nraw('add_key', 248, 217, b'user', b'left', b'x', 1, -2)\n"
        "raw('keyctl', 250, 219, 0, -3, 1)",
    ),
    Attack(
        "files left behind",
        "import tempfile, atexit\nattempt('temporary', tempfile.mkstemp)\n"
        "attempt('anonymous', tempfile.TemporaryFile)\n"
        "attempt('unnamed', os.open, '@WRITABLE@', os.O_TMPFILE | os.O_RDWR)\n"
        "atexit.register(lambda: attempt('at exit', open, '@WRITABLE@/left', 'w'))",
    ),
)

PROCESSES = (
    Attack(
        "exec",
        "import subprocess\nattempt('exec', os.execv, '/bin/sh', ['sh', '-c', 'echo REACHED'])\n"
        "attempt('run', subprocess.run, ['sleep', '@MARKER@'])\n"
        "attempt('system', lambda: 1 / (os.system('echo REACHED') == 0))\n"
        "attempt('spawn', os.posix_spawn, '/bin/sleep', ['sleep', '@MARKER@'], {})\n"
        "attempt('python', os.execv, sys.executable, [sys.executable, '-c', 'print(\"REACHED\")'])",
    ),
    Attack(
        "raw exec",
        "a = (ctypes.c_char_p * 3)(b'sleep', b'@MARKER@', None)\n"
        "raw('execve', 59, 221, b'/bin/sleep', a, None)\nraw('execveat', 322, 281, -100, b'/bin/sleep', a, None, 0)",
    ),
    Attack(
        "kill others",
        "import signal\nfor pid in (@OWNER@, @CANARY@, os.getppid(), 1, 0, -1, os.getpgrp()):\n"
        "    attempt('kill', os.kill, pid, signal.SIGKILL)\n    raw('raw kill', 62, 129, pid, 9)\n"
        "    raw('tkill', 200, 130, pid, 9)\n"
        "    raw('tgkill', 234, 131, pid, pid, 9)\n    raw('sigqueue', 129, 138, pid, 9, b'\\0' * 128)\n"
        "attempt('group', os.killpg, os.getpgrp(), signal.SIGKILL)\nraw('pidfd signal', 424, 424, 1, 9, 0, 0)",
    ),
    Attack(
        "slow others down",
        "for pid in (@OWNER@, os.getppid(), @CANARY@):\n    attempt('nice', os.setpriority, 0, pid, 19)\n"
        "    attempt('affinity', os.sched_setaffinity, pid, [0])\n"
        "    raw('prlimit', 302, 261, pid, 7, b'\\0' * 16, 0)\n"
        "    attempt('idle', os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))",
    ),
    Attack(
        "daemon",
        "import time\ntry:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            print('REACHED', flush=True)\n"
        "            time.sleep(1000)\n        os._exit(0)\nexcept OSError:\n    print('refused')",
        says="refused",
    ),
    Attack(
        "gain privileges",
        "for name in ('setuid', 'setgid', 'seteuid'):\n    attempt(name, getattr(os, name), 0)\n"
        "attempt('groups', os.setgroups, [0])\n"
        "raw('capset', 126, 91, b'\\x22\\x05\\x08\\x20\\0\\0\\0\\0', b'\\xff' * 24)\n"
        "raw('prctl', 157, 167, 8, 1, 0, 0, 0)\n"
        "raw('seccomp', 317, 277, 0, 0, 0)\nraw('personality', 135, 92, 0x40000)\nraw('userfaultfd', 323, 282, 0)\n"
        "raw('perf', 298, 241, b'\\0' * 112, 0, -1, -1, 0)\nraw('init_module', 175, 105, 0, 0, 0)\n"
        "raw('reboot', 169, 142, 0, 0, 0)\n"
        "raw('settime', 227, 112, 0, b'\\0' * 16)\nraw('sethostname', 170, 161, b'x', 1)\n"
        "raw('swapon', 167, 224, b'/', 0)\n"
        "raw('x32 getpid', 0x40000000 + 39, None)\nraw('x32 fork', 0x40000000 + 57, None)",
    ),
    Attack(
        "32-bit call",
        "if is_intel:\n    import mmap\n    page = mmap.mmap(-1, 4096, prot=7)\n"
        "    page.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')  # mov eax, 2 (fork); int 0x80; ret\n"
        "    address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "    print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())\n"
        "    print('REACHED')\nelse:\n    ctypes.string_at(0)",
        (KILLED,),
    ),
)

ENDINGS = (
    Attack("immediate exit", "os.write(1, b'so far')\nos._exit(0)", says="so far"),
    Attack("exit code", "sys.exit(3)", (FAILED,)),
    Attack("exit with a text", "sys.exit('no')", (FAILED,)),
    Attack("exit in thousands", "raise SystemExit(256 * 7)"),
    Attack("forged memory code", "os._exit(250)", (OUT_OF_MEMORY,)),
    Attack("exit at exit", "import atexit\natexit.register(os._exit, 7)\nprint('x')", (FAILED,)),
    Attack("loop at exit", "import atexit\natexit.register(lambda: sum(iter(int, 1)))", (TIMED_OUT,)),
    Attack("loop in a finalizer", "class A:\n    def __del__(self):\n        sum(iter(int, 1))\na = A()", (TIMED_OUT,)),
    Attack("segmentation fault", "ctypes.string_at(0)", (KILLED,)),
    Attack("abort", "os.abort()", (KILLED,)),
    Attack(
        "patched builtins",
        "import builtins, io, json, random\nbuiltins.print = builtins.exec = builtins.compile = builtins.open = None\n"
        "sys.modules.clear()\nsys.path[:] = ['/evil']\njson.loads = lambda x: 'evil'\nrandom.random = lambda: 4\n"
        "sys.stdout.write('patched')\nsys.excepthook = None\nsys.settrace(lambda *a: None)",
        says="patched",
    ),
    Attack("broken hook", "sys.excepthook = lambda *a: sum(iter(int, 1))\n1 / 0", (TIMED_OUT,)),
    Attack("closed streams", "os.closerange(0, 64)\nsys.stdout.close()\nprint('x')", (FAILED,)),
    Attack(
        "frame walk",
        "frame = sys._getframe()\nwhile frame:\n    print(sorted(map(str, frame.f_locals.values())))\n"
        "    frame = frame.f_back",
        (OK, FAILED),
    ),
    Attack("binary output", "os.write(1, bytes(range(256)))\nos.write(2, b'\\xff\\xfe\\0')", says="\ufffd"),
    Attack("terminal codes", "print('\\x1b[2J\\x1b]0;title\\x07<script>alert(1)</script>')", says="<script>"),
    Attack(
        "odd exception", "class E(BaseException):\n    def __str__(self):\n        os._exit(0)\nraise E", (OK, FAILED)
    ),
    Attack("channel that is not there", "attempt('channel', os.write, 3, b'\\0\\0\\0\\1x')"),
    Attack("empty", "", (OK,)),
)

ATTACKS = BOMBS + NETWORK + FILES + PROCESSES + ENDINGS
