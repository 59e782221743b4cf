//! Tests of types and ranges. Each case changes a small valid file and lists all expected problems.

use super::check;

#[test]
fn software_steering_needs_threads() {
    check(&[
        ("batch = 64", "steering = \"software\"\nthreads = 4", &[]),
        ("batch = 64", "steering = \"hardware\"", &[]),
        (
            "batch = 64",
            "threads = 4",
            &[(8, "io.threads", "\"threads\" needs steering = \"software\"", "remove \"threads\"")],
        ),
        (
            "batch = 64",
            "steering = \"software\"",
            &[(
                7,
                "io.threads",
                "[io] needs a \"threads\" key",
                "\"threads\" is the number of packet threads, from 1 to 64, for example threads = 4",
            )],
        ),
        (
            "batch = 64",
            "steering = \"soft\"",
            &[(
                8,
                "io.steering",
                "\"steering\" must be \"hardware\" or \"software\", got \"soft\"",
                "did you mean \"software\"?",
            )],
        ),
        (
            "batch = 64",
            "steering = \"software\"\nthreads = 0",
            &[(9, "io.threads", "\"threads\" must be between 1 and 64, got 0", "")],
        ),
        (
            "batch = 64",
            "steering = \"software\"\nthreads = 65",
            &[(9, "io.threads", "\"threads\" must be between 1 and 64, got 65", "")],
        ),
        (
            "batch = 64",
            "mode = \"af-packet\"\nsteering = \"software\"\nthreads = 4",
            &[(
                9,
                "io.steering",
                "steering = \"software\" cannot be combined with mode = \"af-packet\"",
                "the kernel distributes flows over io.queues packet threads; use steering = \"hardware\"",
            )],
        ),
    ]);
}

#[test]
fn busy_polling_has_bounds_and_packet_sockets_have_none() {
    check(&[
        ("batch = 64", "busy_poll = 1", &[]),
        ("batch = 64", "busy_poll = 1024", &[]),
        (
            "batch = 64",
            "source_ports = \"6000-7000\"",
            &[(
                8,
                "io.source_ports",
                "\"source_ports\" contains port 6080, which GUE uses",
                "choose another range",
            )],
        ),
        (
            "batch = 64",
            "source_ports = \"80-90\"",
            &[(8, "io.source_ports", "\"source_ports\" must be between 1024 and 65535, got \"80-90\"", "")],
        ),
        (
            "batch = 64",
            "source_ports = \"50000-60000\"",
            &[(8, "io.source_ports", "\"source_ports\" has 10001 ports, and the limit is 4096", "")],
        ),
        (
            "batch = 64",
            "busy_poll = 0",
            &[(8, "io.busy_poll", "\"busy_poll\" must be between 1 and 1024, got 0", "")],
        ),
        (
            "batch = 64",
            "busy_poll = 1025",
            &[(8, "io.busy_poll", "\"busy_poll\" must be between 1 and 1024, got 1025", "")],
        ),
        (
            "batch = 64",
            "busy_poll = true",
            &[(
                8,
                "io.busy_poll",
                "\"busy_poll\" must be an integer, got true",
                "use a number between 1 and 1024",
            )],
        ),
        (
            "batch = 64",
            "mode = \"af-packet\"\nbusy_poll = 64",
            &[(9, "io.busy_poll", "\"busy_poll\" needs mode = \"af-xdp\"", "remove \"busy_poll\"")],
        ),
    ]);
}

#[test]
fn types_and_ranges_are_checked() {
    check(&[
        (
            "",
            "schema = 2\n",
            &[(
                1,
                "schema",
                "this version of sluicegate does not support schema 2",
                "update sluicegate; this version reads schema 1",
            )],
        ),
        ("", "schema = 0\n", &[(1, "schema", "\"schema\" must be 1, got 0", "")]),
        ("batch = 64", "batch = 0x40", &[]),
        (
            "batch = 64",
            "batch = 0x101",
            &[(8, "io.batch", "\"batch\" must be between 1 and 256, got 0x101", "")],
        ),
        ("batch = 64", "max_vips = 1", &[]),
        ("batch = 64", "batch = 0", &[(8, "io.batch", "\"batch\" must be between 1 and 256, got 0", "")]),
        ("batch = 64", "batch = 257", &[(8, "io.batch", "\"batch\" must be between 1 and 256, got 257", "")]),
        ("batch = 64", "batch = -1", &[(8, "io.batch", "\"batch\" must be between 1 and 256, got -1", "")]),
        (
            "batch = 64",
            "batch = 18446744073709551617",
            &[(8, "io.batch", "\"batch\" must be between 1 and 256, got 18446744073709551617", "")],
        ),
        (
            "batch = 64",
            "batch = \"64\"",
            &[(8, "io.batch", "\"batch\" must be an integer, got \"64\"", "remove the quotes")],
        ),
        (
            "batch = 64",
            "batch = 64.0",
            &[(8, "io.batch", "\"batch\" must be an integer, got 64.0", "use a number between 1 and 256")],
        ),
        (
            "batch = 64",
            "batch = true",
            &[(8, "io.batch", "\"batch\" must be an integer, got true", "use a number between 1 and 256")],
        ),
        (
            "batch = 64",
            "batch = 1979-05-27",
            &[(
                8,
                "io.batch",
                "\"batch\" must be an integer, got 1979-05-27",
                "use a number between 1 and 256",
            )],
        ),
        (
            "batch = 64",
            "batch = [64]",
            &[(8, "io.batch", "\"batch\" must be an integer, got a list", "use a number between 1 and 256")],
        ),
        (
            "batch = 64",
            "batch = { x = 1 }",
            &[(8, "io.batch", "\"batch\" must be an integer, got a table", "use a number between 1 and 256")],
        ),
        (
            "batch = 64",
            "flows_per_thread = 1023",
            &[(
                8,
                "io.flows_per_thread",
                "\"flows_per_thread\" must be between 1024 and 268435456, got 1023",
                "",
            )],
        ),
        (
            "batch = 64",
            "flows_per_thread = 268435457",
            &[(
                8,
                "io.flows_per_thread",
                "\"flows_per_thread\" must be between 1024 and 268435456, got 268435457",
                "",
            )],
        ),
        (
            "batch = 64",
            "frames_per_queue = 5000",
            &[(
                8,
                "io.frames_per_queue",
                "\"frames_per_queue\" must be a power of two, got 5000",
                "the next power of two is 8192",
            )],
        ),
        (
            "batch = 64",
            "frames_per_queue = 256",
            &[(8, "io.frames_per_queue", "\"frames_per_queue\" must be between 512 and 65536, got 256", "")],
        ),
        (
            "batch = 64",
            "frame_size = 3072",
            &[(8, "io.frame_size", "\"frame_size\" must be 2048 or 4096, got 3072", "")],
        ),
        (
            "batch = 64",
            "frame_size = 8192",
            &[(8, "io.frame_size", "\"frame_size\" must be 2048 or 4096, got 8192", "")],
        ),
        ("batch = 64", "queues = 0", &[(8, "io.queues", "\"queues\" must be between 1 and 256, got 0", "")]),
        (
            "batch = 64",
            "max_vips = 0",
            &[(8, "io.max_vips", "\"max_vips\" must be between 1 and 1048576, got 0", "")],
        ),
        (
            "batch = 64",
            "no_socket = \"dropp\"",
            &[(
                8,
                "io.no_socket",
                "\"no_socket\" must be \"pass\" or \"drop\", got \"dropp\"",
                "did you mean \"drop\"?",
            )],
        ),
        (
            "batch = 64",
            "next_hop = 1",
            &[(8, "io.next_hop", "\"next_hop\" must be \"resolve\" or \"reflect\", got 1", "")],
        ),
        (
            "batch = 64",
            "mode = \"dpdk\"",
            &[(8, "io.mode", "\"mode\" must be \"af-xdp\" or \"af-packet\", got \"dpdk\"", "")],
        ),
        (
            "batch = 64",
            "idle = { spin = \"2s\" }",
            &[(8, "io.idle.spin", "\"spin\" must be between 0s and 1s, got \"2s\"", "")],
        ),
        (
            "batch = 64",
            "idle = { spin = 50 }",
            &[(
                8,
                "io.idle.spin",
                "\"spin\" must be a duration in quotes, got 50",
                "use a whole number with us, ms, s, m or h, such as \"30s\"",
            )],
        ),
        (
            "batch = 64",
            "idle = { prefer = \"speed\" }",
            &[(
                8,
                "io.idle.prefer",
                "\"prefer\" must be \"low-cpu\", \"balanced\" or \"low-latency\", got \"speed\"",
                "",
            )],
        ),
        (
            "batch = 64",
            "idle = { then = \"die\" }",
            &[(8, "io.idle.then", "\"then\" must be \"sleep\" or \"spin\", got \"die\"", "")],
        ),
        (
            "batch = 64",
            "idle = \"50us\"",
            &[(8, "io.idle", "\"idle\" must be a table, got \"50us\"", "write a section [io.idle]")],
        ),
        ("", "log = 3\n", &[(1, "log", "\"log\" must be a table, got 3", "write a section [log]")]),
        (
            "name = \"c\"",
            "name = \"c\"\ntable_size = 65536",
            &[(
                3,
                "cluster.table_size",
                "\"table_size\" must be a prime number, got 65536",
                "the next prime is 65537",
            )],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\ntable_size = 97",
            &[(3, "cluster.table_size", "\"table_size\" must be between 101 and 16777213, got 97", "")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\ndrain_time = \"25h\"",
            &[(3, "cluster.drain_time", "\"drain_time\" must be between 0s and 24h, got \"25h\"", "")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nmax_moved = \"101%\"",
            &[(
                3,
                "cluster.max_moved",
                "\"max_moved\" must be a percentage between \"0%\" and \"100%\", got \"101%\"",
                "",
            )],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nflow_timeouts = { new = \"0s\", established = \"9s\", closing = \"11m\", udp = \"25h\" }",
            &[
                (3, "cluster.flow_timeouts.new", "\"new\" must be between 1s and 2m, got \"0s\"", ""),
                (
                    3,
                    "cluster.flow_timeouts.established",
                    "\"established\" must be between 10s and 24h, got \"9s\"",
                    "",
                ),
                (
                    3,
                    "cluster.flow_timeouts.closing",
                    "\"closing\" must be between 1s and 10m, got \"11m\"",
                    "",
                ),
                (3, "cluster.flow_timeouts.udp", "\"udp\" must be between 1s and 24h, got \"25h\"", ""),
            ],
        ),
        (
            "name = \"c\"",
            "name = \"\"",
            &[(
                2,
                "cluster.name",
                "invalid name \"\"",
                "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
            )],
        ),
        (
            "name = \"c\"",
            "name = \"a\\nb\"",
            &[(
                2,
                "cluster.name",
                "invalid name \"a\\nb\"",
                "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
            )],
        ),
        (
            "\"eth0\"",
            "\"a-16-bytes-name-\", \"eth0/1\", \"eth0\", \"eth0\"",
            &[
                (
                    6,
                    "machine.lb1.interfaces[0]",
                    "\"interfaces[0]\" must be an interface name of 1 to 15 bytes without '/', ':' and white space, got \"a-16-bytes-name-\"",
                    "for example \"eth0\"",
                ),
                (
                    6,
                    "machine.lb1.interfaces[1]",
                    "\"interfaces[1]\" must be an interface name of 1 to 15 bytes without '/', ':' and white space, got \"eth0/1\"",
                    "for example \"eth0\"",
                ),
                (6, "machine.lb1.interfaces[3]", "\"interfaces\" lists \"eth0\" twice", ""),
            ],
        ),
        (
            "[\"eth0\"]",
            "[\"a0\", \"a1\", \"a2\", \"a3\", \"a4\", \"a5\", \"a6\", \"a7\", \"a8\", \"a9\", \"b0\", \"b1\", \"b2\", \"b3\", \
             \"b4\", \"b5\", \"b6\"]",
            &[(6, "machine.lb1.interfaces[16]", "a machine can have at most 16 interfaces", "")],
        ),
        (
            "[\"eth0\"]",
            "[]",
            &[(6, "machine.lb1.interfaces", "\"interfaces\" must not be empty", "for example [\"eth0\"]")],
        ),
        (
            "[\"192.0.2.1\"]",
            "\"192.0.2.1\"",
            &[
                (
                    5,
                    "machine.lb1.addresses",
                    "\"addresses\" must be a list of the machine's own addresses, got \"192.0.2.1\"",
                    "for example [\"192.0.2.1\"]",
                ),
                (
                    13,
                    "pool.p.backends[0].address",
                    "machine \"lb1\" has no IPv4 source address for packets to 198.18.0.1",
                    "add an IPv4 address to the machine, or an IPv4 prefix to source_prefixes of encapsulation \"t\"",
                ),
            ],
        ),
        (
            "",
            "log = { level = \"loud\", format = \"xml\" }\n",
            &[
                (
                    1,
                    "log.level",
                    "\"level\" must be \"error\", \"warn\", \"info\", \"debug\" or \"trace\", got \"loud\"",
                    "",
                ),
                (1, "log.format", "\"format\" must be \"human\", \"journald\" or \"json\", got \"xml\"", ""),
            ],
        ),
    ]);
}
