// Made of openapi/wakeful.json by `npm run generate`; a test fails when the two differ.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description A piece of an egress policy. */
        AllowedBy: {
            /** @description Ranges to allow. */
            allow_cidrs: string[];
            /** @description Names to allow. */
            allow_domains: string[];
            /** @description Ranges that must no longer be denied. */
            without_deny_cidrs: string[];
            /** @description Ports, if the policy limits them. */
            allow_ports: number[];
        };
        /** @description Why it is awake. */
        AwakeBecause: {
            /** @description `exec`, `keep_awake`, `lease`, `transfer`, `recent_activity` or `not_suspendable`. */
            reason: string;
            /** @description Since when. */
            since: components["schemas"]["Instant"];
            /** @description More, for people. */
            detail: string | null;
        };
        /** @description Attempts that were refused. */
        Blocked: {
            /** @description Which rule stopped it: `policy`, `denied_range`, `private`, `link_local`, `host`, `dns`, `name` and so on. */
            reason: string;
            /** @description Where to, if it was an address. */
            address: string | null;
            /** @description Where to, if it was a name. */
            name: string | null;
            /** @description `tcp`, `udp`, `icmp` and so on. */
            protocol: string | null;
            /**
             * Format: int32
             * @description The port, if the protocol has ports.
             */
            port: number | null;
            /**
             * Format: int64
             * @description How often.
             */
            count: number;
            allowed_by: components["schemas"]["AllowedBy"] | null;
        };
        /** @description Why a build failed. */
        BuildError: {
            /** @description The step. */
            step: string;
            /**
             * Format: int32
             * @description Its line in a build file, where there is one.
             */
            line: number | null;
            /** @description What went wrong. */
            detail: string;
        };
        /** @description One line of `GET /v1/templates/{name}/logs`. */
        BuildEvent: {
            /** @description When. */
            at: components["schemas"]["Instant"];
            /** @description Where it is. */
            step: string;
            /**
             * Format: float
             * @description How much of the step is done, from 0 to 1, where that is known.
             */
            fraction: number | null;
            /** @description What the step said. */
            line: string | null;
            layer: components["schemas"]["BuildLayer"] | null;
            /** @enum {string} */
            type: "progress";
        } | {
            /** @description How far the template is. */
            status: components["schemas"]["TemplateStatus"];
            build_error: components["schemas"]["BuildError"] | null;
            /** @enum {string} */
            type: "end";
        };
        /** @description How far one layer of an image is. */
        BuildLayer: {
            /**
             * Format: int32
             * @description Which, from 1.
             */
            number: number;
            /**
             * Format: int32
             * @description Of how many.
             */
            count: number;
            /** @description The beginning of its digest. */
            digest: string;
            /**
             * Format: int64
             * @description Bytes that are done.
             */
            done: number;
            /**
             * Format: int64
             * @description Bytes in all.
             */
            total: number;
        };
        /** @description What its engine can do. */
        Capabilities: {
            /** @description How it is kept apart from the host. */
            isolation: string;
            /** @description Memory and processes survive a suspend. */
            memory_survives_suspend: boolean;
            /** @description It can be forked. */
            fork: boolean;
            /** @description It has a network. */
            network: boolean;
            /** @description The processor runs its code itself. */
            hardware_virtualization: boolean;
            /** @description A suspend that is called off, a snapshot and a fork reset its connections to the outside. */
            cancel_resets_connections: boolean;
            /** @description What a suspend does to connections to the outside: `reset` from there, or `dropped` by the engine. */
            outside_tcp: string;
            /** @description A checkpoint holds only the memory that has changed. */
            dirty_pages: boolean;
            /** @description It is a clone of a golden snapshot; else it was started from its template's files. */
            golden_clones: boolean;
            /**
             * @description Some things that processes hold, as deleted files, are in the way of keeping memory: such a suspend, snapshot or fork is
             *     refused with `not_suspendable`.
             */
            obstacles: boolean;
            /** @description What it asks of its disk can be limited. */
            io_limits: boolean;
        };
        /**
         * @description Why it happened
         * @enum {string}
         */
        Cause: "api" | "cli" | "idle" | "timeout" | "hard_ttl" | "access" | "guest_exit" | "out_of_memory" | "engine_died" | "recovery" | "shutdown" | "pressure";
        /** @description `PATCH /v1/tenants/{name}`. */
        ChangeTenant: {
            /** @description How much it may have from now on. */
            limits: components["schemas"]["LimitsRequest"];
        };
        /** @description What to run. */
        Command: string | string[];
        /** @description `POST /v1/keys`. */
        CreateKey: {
            /** @description What people call it. */
            name: string;
            /** @description For whom; `default` if it is left out. */
            tenant?: string | null;
            /** @description What it shall allow; everything within its tenant if it is left out. */
            scopes?: components["schemas"]["Scope"][];
        };
        /** @description `POST /v1/sandboxes`. */
        CreateSandbox: {
            /**
             * @description Template name, `name:tag` or id, or the id of a snapshot.
             * @default
             */
            template?: string;
            /** @default null */
            mode?: components["schemas"]["Mode"] | null;
            /** @default null */
            timeout?: components["schemas"]["Duration"] | null;
            /** @default null */
            idle_timeout?: components["schemas"]["Duration"] | null;
            /** @default null */
            hard_ttl?: components["schemas"]["Duration"] | null;
            /**
             * @description A preset,
             * @default null
             */
            size?: string | null;
            /**
             * Format: int32
             * @description or processors
             * @default null
             */
            cpu?: number | null;
            /**
             * Format: int32
             * @description and memory in MiB.
             * @default null
             */
            memory_mb?: number | null;
            /**
             * Format: int32
             * @description Disk in MiB.
             * @default null
             */
            disk_mb?: number | null;
            /**
             * @description Variables.
             * @default {}
             */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Labels.
             * @default {}
             */
            metadata?: {
                [key: string]: string;
            };
            /** @default null */
            egress?: components["schemas"]["EgressRequest"] | null;
            /** @default null */
            io?: components["schemas"]["IoLimits"] | null;
            /**
             * @description Access wakes it.
             * @default null
             */
            auto_resume?: boolean | null;
            /**
             * @description Which runtime, if not the template's or the daemon's; `auto` leaves it to them.
             * @default null
             */
            runtime?: string | null;
        };
        /** @description `POST …/snapshots`. */
        CreateSnapshot: {
            /**
             * @description What to call it; its id, if absent.
             * @default null
             */
            name?: string | null;
        };
        /** @description `POST /v1/templates`. */
        CreateTemplate: {
            /** @description Its name. */
            name: string;
            /** @description From what. */
            source: components["schemas"]["TemplateSource"];
            /** @description What else it answers to: `name:tag`. */
            tags?: string[];
            /** @description What it is for. */
            description?: string | null;
            /** @description Size of sandboxes that name none. */
            default_size?: string | null;
            /** @description Variables of all its sandboxes, over the source's. */
            env?: {
                [key: string]: string;
            };
            egress?: components["schemas"]["EgressRequest"] | null;
            /**
             * Format: int32
             * @description Disk of sandboxes that name none, in MiB.
             */
            disk_mb?: number | null;
            io?: components["schemas"]["IoLimits"] | null;
            /** @description Who runs commands, if not the source's user. */
            user?: string | null;
            /** @description Where, if not in the source's. */
            workdir?: string | null;
            start?: components["schemas"]["Command"] | null;
            ready?: components["schemas"]["Command"] | null;
            ready_timeout?: components["schemas"]["Duration"] | null;
            /**
             * @description Start it once, and make sandboxes copies of one in which it is ready: they have it from their first moment. It has the
             *     template's variables; a sandbox that is given its own starts it itself. What it has drawn of random numbers by then is
             *     the same in every copy.
             */
            warm?: boolean;
            /** @description Runtime of sandboxes that name none, and of the build; the daemon's if absent or `auto`. */
            runtime?: string | null;
        };
        /** @description `POST /v1/tenants`. */
        CreateTenant: {
            /** @description Its name. */
            name: string;
            /** @description How much it may have. */
            limits?: components["schemas"]["LimitsRequest"];
        };
        /** @description A key, and the one time that its secret is shown */
        CreatedKey: {
            /** @description Its id. */
            id: components["schemas"]["KeyId"];
            /** @description What people call it. */
            name: string;
            /** @description Whose it is. */
            tenant: string;
            /** @description What it allows, such as `sandbox:*`. */
            scopes: components["schemas"]["Scope"][];
            /** @description Since when it exists. */
            created_at: components["schemas"]["Instant"];
            last_used_at: components["schemas"]["Instant"] | null;
            /** @description The key itself */
            key: string;
        };
        /** @description What a request that names none gets. */
        DefaultsInfo: {
            /** @description Size, where the template names none. */
            size: string;
            /**
             * Format: int64
             * @description Lease of an ephemeral sandbox.
             */
            timeout_seconds: number;
            /**
             * Format: int64
             * @description Idleness before a persistent one sleeps.
             */
            idle_timeout_seconds: number;
            /**
             * Format: int64
             * @description Time of a command.
             */
            exec_timeout_seconds: number;
            /**
             * Format: int32
             * @description Disk in MiB.
             */
            disk_mb: number;
        };
        /** @description A duration as people write it, or a whole number of seconds */
        Duration: string | number;
        /** @description Which outside addresses it may reach. */
        Egress: {
            /** @description What happens to the rest. */
            mode: components["schemas"]["EgressMode"];
            /** @description Allowed ranges. */
            allow_cidrs: string[];
            /** @description Denied ranges. */
            deny_cidrs: string[];
            /** @description Ports that limit the allow lists. */
            allow_ports: number[];
            /** @description Allowed names. */
            allow_domains: string[];
        };
        /**
         * @description What happens to traffic that no list names
         * @enum {string}
         */
        EgressMode: "allow_all" | "deny_all";
        /** @description `GET /v1/sandboxes/{id}/egress`. */
        EgressReport: {
            /** @description The policy that holds. */
            egress: components["schemas"]["Egress"];
            /**
             * Format: int64
             * @description Bytes that left it, since the daemon started.
             */
            bytes_out: number;
            /**
             * Format: int64
             * @description Bytes that came back.
             */
            bytes_in: number;
            /** @description What was refused, most frequent first; kept for an hour after the last try, and for as long as the daemon runs. */
            blocked: components["schemas"]["Blocked"][];
        };
        /** @description Egress as it is asked for. Lists without a mode mean `deny_all`. */
        EgressRequest: {
            /** @default null */
            mode?: components["schemas"]["EgressMode"] | null;
            /**
             * @description Allowed ranges.
             * @default []
             */
            allow_cidrs?: string[];
            /**
             * @description Denied ranges.
             * @default []
             */
            deny_cidrs?: string[];
            /**
             * @description Ports that limit the allow lists.
             * @default []
             */
            allow_ports?: number[];
            /**
             * @description Allowed names.
             * @default []
             */
            allow_domains?: string[];
        };
        /** @description What runs in a sandbox from its first moment. */
        Entry: {
            /** @description What is started. */
            start: string[];
            /** @description What ends with 0 once it is ready to be used; a create waits for that. */
            ready: string[] | null;
            /**
             * Format: int32
             * @description How long a create waits for it.
             */
            ready_seconds: number;
            /** @description It was started once, and sandboxes are copies of one in which it was ready. */
            warm: boolean;
        };
        /** @description One event. */
        Event: {
            /**
             * Format: int64
             * @description Its number; they begin at 1 for each sandbox and have no gaps.
             */
            seq: number;
            /** @description When. */
            at: components["schemas"]["Instant"];
            /** @description What happened. */
            type: components["schemas"]["EventType"];
            /** @description Why. */
            cause: components["schemas"]["Cause"];
            /** @description The key of whoever asked for it. */
            actor: string | null;
            /**
             * Format: int64
             * @description How long it took.
             */
            duration_ms: number | null;
            /**
             * Format: int64
             * @description The generation after it.
             */
            runtime_generation: number;
            /** @description More; `message` is for people. */
            detail: Record<string, never>;
        };
        /** @description `GET …/events`. */
        EventList: {
            /** @description Oldest first. */
            events: components["schemas"]["Event"][];
            /**
             * Format: int64
             * @description Where the next page begins.
             */
            next_after: number;
        };
        /**
         * @description What happened
         * @enum {string}
         */
        EventType: "created" | "suspend_started" | "suspend_cancelled" | "suspended" | "wake_started" | "woken" | "keepalive" | "snapshot" | "forked" | "egress_changed" | "failed" | "destroyed" | "adopted" | "checkpoint_rejected";
        /** @description `POST …/execute`. */
        ExecuteRequest: {
            /** @description What to run. */
            command: components["schemas"]["Command"];
            timeout?: components["schemas"]["Duration"] | null;
            /** @description Where it runs, if not in the template's. */
            workdir?: string | null;
            /** @description Variables over the sandbox's. */
            env?: {
                [key: string]: string;
            };
            /** @description As whom, if not the template's user. */
            user?: string | null;
            /** @description What it reads from its standard input. */
            stdin?: string | null;
        };
        /** @description How it ended. */
        ExecuteResponse: {
            /**
             * Format: int32
             * @description 128 and the signal, if it was killed.
             */
            exit_code: number;
            /** @description Its output; bytes that are no UTF-8 are U+FFFD. */
            stdout: string;
            /** @description Its error output. */
            stderr: string;
            /**
             * Format: int64
             * @description Measured in the guest, without a wake.
             */
            duration_ms: number;
            /** @description It was killed because its time was up. */
            timed_out: boolean;
            /**
             * Format: int32
             * @description The signal that killed it.
             */
            signal: number | null;
            /** @description There was more output than is kept. */
            stdout_truncated: boolean;
            /** @description There was more error output than is kept. */
            stderr_truncated: boolean;
            /**
             * Format: int32
             * @description Its process id in the guest.
             */
            pid: number;
        };
        /** @description Why it failed. */
        Failure: {
            /** @description A short word. */
            code: string;
            /** @description For people. */
            detail: string;
            /** @description When. */
            at: components["schemas"]["Instant"];
            /** @description Whether a wake can boot it from its disk. */
            bootable: boolean;
        };
        /** @description One entry of a directory. */
        FileEntry: {
            /** @description Its last name. */
            name: string;
            /**
             * Format: int64
             * @description In bytes.
             */
            size: number;
            /** @description What it is. */
            type: components["schemas"]["FileType"];
            modified: components["schemas"]["Instant"] | null;
            /** @description Permission bits in octal, as `0644`. */
            mode: string;
            /** @description Its owner's name, or number where there is no name. */
            owner: string;
            /** @description Where a symbolic link points. */
            target: string | null;
        };
        /** @description A line of `GET …/files/{path}?watch=true`. Paths are absolute. */
        FileEvent: {
            /** @description Which. */
            path: string;
            /** @enum {string} */
            type: "create";
        } | {
            /** @description Which. */
            path: string;
            /** @enum {string} */
            type: "write";
        } | {
            /** @description Which. */
            path: string;
            /** @enum {string} */
            type: "remove";
        } | {
            /** @description Which. */
            path: string;
            /** @enum {string} */
            type: "rename";
        } | {
            /** @description Which. */
            path: string;
            /** @enum {string} */
            type: "chmod";
        } | {
            /** @enum {string} */
            type: "overflow";
        } | {
            /** @enum {string} */
            type: "keepalive";
        } | {
            /** @enum {string} */
            type: "suspended";
        } | {
            /** @description Stable code of the problem. */
            code: string;
            /** @description For people. */
            detail: string;
            /** @enum {string} */
            type: "error";
        };
        /** @description `GET …/files/{path}?list=true`. */
        FileList: {
            /** @description By name, without `.` and `..`. */
            entries: components["schemas"]["FileEntry"][];
        };
        FileListOrEntry: components["schemas"]["FileList"] | components["schemas"]["FileEntry"];
        /**
         * @description What an entry is.
         * @enum {string}
         */
        FileType: "file" | "directory" | "symlink" | "other";
        /** @description Why a child did not come to be. */
        ForkError: {
            /** @description Which problem, as in a problem's `code`. */
            code: string;
            /** @description For people. */
            detail: string;
        };
        /** @description `POST …/fork`. What is left out is as the source has it. */
        ForkRequest: {
            /**
             * Format: int32
             * @description How many children; one, if absent.
             * @default null
             */
            count?: number | null;
            /** @default null */
            mode?: components["schemas"]["Mode"] | null;
            /** @default null */
            timeout?: components["schemas"]["Duration"] | null;
            /** @default null */
            idle_timeout?: components["schemas"]["Duration"] | null;
        };
        /** @description What came of a fork. */
        Forked: {
            /** @description The children, each running. */
            sandboxes: components["schemas"]["Sandbox"][];
            /** @description Why the others did not come to be, one for each. */
            errors: components["schemas"]["ForkError"][];
        };
        /** @description One line of a process's stream, or one text message of its terminal. Ignore types that you do not know. */
        Frame: {
            /** @enum {string} */
            type: "start";
            seq: number;
            pid: number;
            runtime_generation: number;
        } | {
            /** @enum {string} */
            type: "stdout";
            seq: number;
            /** @description If they are UTF-8 */
            data?: string;
            /** @description If they are not */
            data_base64?: string;
        } | {
            /** @enum {string} */
            type: "stderr";
            seq: number;
            /** @description If they are UTF-8 */
            data?: string;
            /** @description If they are not */
            data_base64?: string;
        } | {
            /** @enum {string} */
            type: "gap";
            seq: number;
            dropped_bytes: number;
        } | {
            /** @enum {string} */
            type: "keepalive";
        } | {
            /** @enum {string} */
            type: "exit";
            seq: number;
            exit_code: number;
            signal: number | null;
            timed_out: boolean;
            duration_ms: number;
        } | {
            /** @enum {string} */
            type: "suspended";
            pid: number;
            seq: number;
        } | {
            /** @enum {string} */
            type: "error";
            code: string;
            detail: string;
        };
        /** @description `GET /healthz`. */
        Health: {
            /** @description `ok`; a draining server answers with a problem instead. */
            status: string;
            /** @description The server's version. */
            version: string;
            /** @description The runtime that new sandboxes get; `null` if none is usable. */
            runtime: string | null;
        };
        /** @description `GET /v1/info`. */
        Info: {
            /** @description The server's version. */
            version: string;
            /** @description The runtime that new sandboxes get. */
            selected_runtime: string | null;
            /** @description All runtimes. */
            runtimes: components["schemas"]["RuntimeInfo"][];
            /** @description What those runtimes can do, by name, that were used since the daemon's start. */
            capabilities: {
                [key: string]: components["schemas"]["Capabilities"];
            };
            /** @description Size presets, smallest first. */
            sizes: components["schemas"]["SizeInfo"][];
            /** @description What a request cannot exceed. */
            limits: components["schemas"]["Limits"];
            /** @description What a request that names none gets. */
            defaults: components["schemas"]["DefaultsInfo"];
            /** @description Who is asking. */
            tenant: string;
        };
        /**
         * Format: date-time
         * @description RFC 3339, UTC, milliseconds
         * @example 2026-04-05T14:30:00.000Z
         */
        Instant: string;
        /** @description Limits on reading and writing together; null is no limit. */
        IoLimits: {
            /**
             * Format: int64
             * @description Operations a second, kept up.
             * @default null
             */
            ops_per_sec?: number | null;
            /**
             * Format: int64
             * @description Operations a second, in a burst of a second.
             * @default null
             */
            burst_ops?: number | null;
            /**
             * Format: int64
             * @description Megabytes (of 1,000,000 bytes) a second, kept up.
             * @default null
             */
            bandwidth_mbps?: number | null;
            /**
             * Format: int64
             * @description Megabytes a second, in a burst of a second.
             * @default null
             */
            burst_mbps?: number | null;
        };
        /** @description `POST …/keepalive`. */
        KeepaliveRequest: {
            /** @default null */
            timeout?: components["schemas"]["Duration"] | null;
        };
        /** @description A key, without its secret. */
        Key: {
            /** @description Its id. */
            id: components["schemas"]["KeyId"];
            /** @description What people call it. */
            name: string;
            /** @description Whose it is. */
            tenant: string;
            /** @description What it allows, such as `sandbox:*`. */
            scopes: components["schemas"]["Scope"][];
            /** @description Since when it exists. */
            created_at: components["schemas"]["Instant"];
            last_used_at: components["schemas"]["Instant"] | null;
        };
        /**
         * @description The id of a key; taken with and without its prefix, printed with it
         * @example key_k3v7q2m5x6a4b2c7d5ef
         */
        KeyId: string;
        /** @description `GET /v1/keys`. */
        KeyList: {
            /** @description Oldest first. */
            keys: components["schemas"]["Key"][];
        };
        /** @description What a request cannot exceed. */
        Limits: {
            /**
             * Format: int64
             * @description Longest lease; longer ones are clamped.
             */
            max_timeout_seconds: number;
            /**
             * Format: int64
             * @description Longest command; longer ones are refused.
             */
            max_exec_timeout_seconds: number;
            /**
             * Format: int64
             * @description Largest uploaded file.
             */
            upload_bytes: number;
            /**
             * Format: int64
             * @description Largest JSON body.
             */
            body_bytes: number;
            /**
             * Format: int64
             * @description Output that is kept per stream of a command.
             */
            output_bytes: number;
        };
        /** @description Limits in a request: what is left out stays as it is (none, for a new tenant), `null` lifts a limit. */
        LimitsRequest: {
            /**
             * Format: int64
             * @description Sandboxes that are not destroyed.
             */
            sandboxes?: number | null;
            /**
             * Format: int64
             * @description Memory of those that run, in MiB.
             */
            memory_mb?: number | null;
            /**
             * Format: int64
             * @description Disk of all that are not destroyed, in MiB.
             */
            disk_mb?: number | null;
        };
        /**
         * @description How a sandbox ends: with its lease, or not by itself
         * @enum {string}
         */
        Mode: "ephemeral" | "persistent";
        /** @description `PATCH /v1/sandboxes/{id}`. What is absent stays as it is. */
        PatchSandbox: {
            /**
             * @description All labels: those that are not named go.
             * @default null
             */
            metadata?: {
                [key: string]: string;
            } | null;
            /** @default null */
            egress?: components["schemas"]["EgressRequest"] | null;
            /** @default null */
            idle_timeout?: components["schemas"]["Duration"] | null;
            /** @default null */
            hard_ttl?: components["schemas"]["Duration"] | null;
            /**
             * @description Access wakes it.
             * @default null
             */
            auto_resume?: boolean | null;
            /**
             * Format: int32
             * @description A larger disk from its next start on, in MiB; only while it is suspended.
             * @default null
             */
            disk_mb?: number | null;
        };
        /** @description Sandboxes of one template and size that are made before they are asked for. */
        Pool: {
            /** @description The template's name. */
            template: string;
            /** @description The size, a preset. */
            size: string;
            /**
             * Format: int32
             * @description Members that can be claimed now.
             */
            ready: number;
            /**
             * Format: int64
             * @description Members that were claimed since the daemon started.
             */
            claimed: number;
            /**
             * Format: int32
             * @description How many members there are to be.
             */
            target: number;
            /**
             * Format: int64
             * @description What its members may take of the host's memory, in MiB.
             */
            memory_mb: number;
        };
        /** @description `GET /v1/pool`. */
        PoolList: {
            /** @description By template and size. */
            pools: components["schemas"]["Pool"][];
        };
        /** @description A port of a sandbox. */
        Port: {
            /**
             * Format: int32
             * @description Its number.
             */
            port: number;
            /** @description Its preview needs no credentials. */
            public: boolean;
            /** @description Where its preview is. */
            url: string;
        };
        /** @description `GET …/ports`. */
        PortList: {
            /** @description Those that something was said about, by number; all others are private. */
            ports: components["schemas"]["Port"][];
        };
        /** @description `POST …/ports/{port}/session`. */
        PortSession: {
            /** @description Where a browser gets in, once. */
            url: string;
            /** @description Until when. */
            expires_at: components["schemas"]["Instant"];
        };
        /**
         * @description RFC 9457. Some problems have more fields: `fits`, or `pid` and `seq`.
         * @example {
         *       "type": "about:blank",
         *       "title": "Conflict",
         *       "status": 409,
         *       "code": "sandbox_suspended",
         *       "detail": "sbx_k3v7q2m5x6a4b2c7d5ef: it is suspended and auto_resume is off",
         *       "hint": "POST /v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/wake",
         *       "field": null,
         *       "request_id": "req_k3v7q2m5x6a4b2c7d5ef"
         *     }
         */
        Problem: {
            /** @description Always `about:blank`: the code tells problems apart */
            type: string;
            /** @description The status in words */
            title: string;
            /** @description The status */
            status: number;
            /**
             * @description Which problem; never renamed
             * @enum {string}
             */
            code: "invalid_json" | "unknown_field" | "missing_field" | "invalid_field" | "invalid_id" | "invalid_size" | "invalid_mode" | "invalid_duration" | "invalid_combination" | "invalid_egress" | "invalid_path" | "invalid_name" | "missing_command" | "workdir_not_found" | "unknown_user" | "is_directory" | "not_a_directory" | "unauthenticated" | "wrong_tenant" | "forbidden" | "foreign_origin" | "route_not_found" | "method_not_allowed" | "sandbox_not_found" | "template_not_found" | "snapshot_not_found" | "tenant_not_found" | "key_not_found" | "path_not_found" | "process_not_found" | "template_not_ready" | "build_in_progress" | "no_build" | "name_taken" | "not_ephemeral" | "not_running" | "not_suspended" | "not_suspendable" | "not_wakeable" | "sandbox_destroyed" | "sandbox_failed" | "sandbox_suspended" | "suspended_during_exec" | "stdin_closed" | "wake_in_progress" | "idempotency_mismatch" | "tenant_in_use" | "last_key" | "body_too_large" | "file_too_large" | "no_shell" | "command_not_found" | "not_executable" | "quota_exceeded" | "internal" | "unsupported_by_runtime" | "guest_unresponsive" | "port_not_open" | "bad_gateway" | "shutting_down" | "busy" | "runtime_unavailable" | "wake_timeout" | "not_ready" | "insufficient_capacity" | "disk_full" | "guest_disk_full";
            /** @description What was wrong, for people */
            detail: string;
            /** @description What to do about it */
            hint: string | null;
            /** @description The request field that is wrong */
            field: string | null;
            /** @description To be found in the server's log */
            request_id: string;
        };
        /** @description A process that runs, or that ended within the hour. */
        Process: {
            /**
             * Format: int32
             * @description Its id in the guest.
             */
            pid: number;
            /** @description What it runs; a long one is cut. */
            command: components["schemas"]["Command"];
            /** @description As whom. */
            user: string;
            /** @description Where it was started. */
            workdir: string;
            /** @description When. */
            started_at: components["schemas"]["Instant"];
            /** @description Whether it still runs. */
            running: boolean;
            /**
             * Format: int32
             * @description How it ended: 128 and the signal, if it was killed.
             */
            exit_code: number | null;
            /** @description Whether it has a terminal. */
            pty: boolean;
            /**
             * Format: int64
             * @description The last frame of its output.
             */
            last_seq: number;
            /** @description Whether it keeps the sandbox awake. */
            keep_awake: boolean;
        };
        /** @description `GET …/processes`. */
        ProcessList: {
            /** @description By process id. */
            processes: components["schemas"]["Process"][];
        };
        /** @description `POST /v1/prune`. */
        PruneRequest: {
            /** @default null */
            unused?: components["schemas"]["Duration"] | null;
        };
        /** @description What was removed. */
        Pruned: {
            /**
             * Format: int64
             * @description How many things.
             */
            count: number;
            /**
             * Format: int64
             * @description What they took on disk.
             */
            bytes: number;
        };
        /** @description Size of a terminal in characters; also the body of `POST …/resize`. */
        PtySize: {
            /**
             * Format: int32
             * @description Width.
             */
            cols: number;
            /**
             * Format: int32
             * @description Height.
             */
            rows: number;
        };
        /** @description `PUT /v1/pool/{template}/{size}`. */
        PutPool: {
            /**
             * Format: int32
             * @description How many members there are to be; 0 for none.
             */
            target: number;
        };
        /** @description `PUT …/ports/{port}`. */
        PutPort: {
            /** @description Its preview shall need no credentials. */
            public: boolean;
        };
        /** @description `POST /v1/templates/{name}/rebuild`. */
        RebuildTemplate: {
            /** @default null */
            upload?: components["schemas"]["UploadId"] | null;
        };
        /** @description One runtime, as `doctor` shows it. */
        RuntimeInfo: {
            /** @description Its name. */
            name: string;
            /** @description How guest code is run. */
            accel: string;
            /** @description Whether it can be used. */
            available: boolean;
            /** @description Why not. */
            reason: string | null;
            /** @description The one command that would help. */
            fix: string | null;
            /** @description The engine's version. */
            version: string | null;
            probed_at: components["schemas"]["Instant"] | null;
        };
        /** @description A sandbox. */
        Sandbox: {
            /** @description Its id. */
            id: components["schemas"]["SandboxId"];
            /** @description What it is. */
            status: components["schemas"]["Status"];
            transition: components["schemas"]["Transition"] | null;
            /** @description How it ends. */
            mode: components["schemas"]["Mode"];
            /** @description The template's name when it was made. */
            template: string;
            /** @description The template. */
            template_id: components["schemas"]["TemplateId"];
            /** @description The preset, if one was asked for. */
            size: string | null;
            /**
             * Format: int32
             * @description Virtual processors.
             */
            cpu: number;
            /**
             * Format: int32
             * @description Memory in MiB.
             */
            memory_mb: number;
            /**
             * Format: int32
             * @description Disk in MiB.
             */
            disk_mb: number;
            /** @description Names of its variables; values are never sent. */
            env_keys: string[];
            /** @description The caller's labels. */
            metadata: {
                [key: string]: string;
            };
            /** @description Egress policy. */
            egress: components["schemas"]["Egress"];
            /** @description What it may ask of its disk. */
            io: components["schemas"]["IoLimits"];
            /** @description Its driver. */
            runtime: string;
            /** @description How its code is run. */
            accel: string;
            capabilities: components["schemas"]["Capabilities"] | null;
            /**
             * Format: int64
             * @description 1 at create, one more at every wake.
             */
            runtime_generation: number;
            /** @description What the last wake did; `null` before the first. */
            restored_memory: boolean | null;
            /** @description Access wakes it. */
            auto_resume: boolean;
            /** @description Since when it exists. */
            created_at: components["schemas"]["Instant"];
            /** @description Last change. */
            updated_at: components["schemas"]["Instant"];
            started_at: components["schemas"]["Instant"] | null;
            suspended_at: components["schemas"]["Instant"] | null;
            destroyed_at: components["schemas"]["Instant"] | null;
            /** @description Last time someone used it. */
            last_activity_at: components["schemas"]["Instant"];
            expires_at: components["schemas"]["Instant"] | null;
            /**
             * Format: int64
             * @description How long a lease is that names no length.
             */
            timeout_seconds: number | null;
            /**
             * Format: int64
             * @description Idleness before it sleeps.
             */
            idle_timeout_seconds: number | null;
            hard_expires_at: components["schemas"]["Instant"] | null;
            /** @description Why it is awake. */
            awake_because: components["schemas"]["AwakeBecause"][];
            sleeps_at: components["schemas"]["Instant"] | null;
            /** @description What it takes on disk. */
            storage: components["schemas"]["Storage"];
            parent_id: components["schemas"]["SandboxId"] | null;
            failure: components["schemas"]["Failure"] | null;
        };
        /**
         * @description The id of a sandbox; taken with and without its prefix, printed with it
         * @example sbx_k3v7q2m5x6a4b2c7d5ef
         */
        SandboxId: string;
        /** @description `GET /v1/sandboxes`. */
        SandboxList: {
            /** @description Newest first. */
            sandboxes: components["schemas"]["Sandbox"][];
            /** @description Where the next page begins. */
            next_cursor: string | null;
        };
        /**
         * @description What a key allows
         * @enum {string}
         */
        Scope: "sandbox:read" | "sandbox:write" | "sandbox:*" | "template:read" | "template:write" | "template:*" | "admin";
        /** @description `POST …/signal`. */
        SignalRequest: {
            /** @description `TERM`, `SIGTERM` or its number as text. */
            signal: string;
        };
        /** @description A size preset. */
        SizeInfo: {
            /** @description Its name. */
            name: string;
            /**
             * Format: int32
             * @description Virtual processors.
             */
            cpu: number;
            /**
             * Format: int32
             * @description Memory in MiB.
             */
            memory_mb: number;
        };
        /** @description A kept copy of a sandbox. */
        Snapshot: {
            /** @description Its id; a create takes it in the place of a template. */
            id: components["schemas"]["SnapshotId"];
            /** @description What it is called. */
            name: string;
            /** @description What it was taken of; that may be gone by now. */
            sandbox_id: components["schemas"]["SandboxId"];
            /** @description The template's name when that was made. */
            template: string;
            /** @description Whether it has memory and processes, and not only the disk. */
            memory: boolean;
            /**
             * Format: int64
             * @description What it takes on disk by itself.
             */
            own_bytes: number;
            /**
             * Format: int64
             * @description What it shares with others.
             */
            shared_bytes: number;
            /** @description When it was taken. */
            created_at: components["schemas"]["Instant"];
        };
        /**
         * @description The id of a snapshot; taken with and without its prefix, printed with it
         * @example snp_k3v7q2m5x6a4b2c7d5ef
         */
        SnapshotId: string;
        /** @description `GET /v1/snapshots`. */
        SnapshotList: {
            /** @description Newest first. */
            snapshots: components["schemas"]["Snapshot"][];
        };
        /** @description One kind of file. */
        Space: {
            /** @description What it is. */
            kind: string;
            /**
             * Format: int64
             * @description How many there are.
             */
            count: number;
            /**
             * Format: int64
             * @description What they take on disk.
             */
            bytes: number;
            /**
             * Format: int64
             * @description How large they would be without their holes.
             */
            apparent_bytes: number;
            /**
             * Format: int64
             * @description What `POST /v1/prune` would give back.
             */
            reclaimable_bytes: number;
        };
        /** @description As a command, but nobody waits for it. Without a timeout it may run for ever. */
        StartProcess: {
            /** @description What to run. */
            command: components["schemas"]["Command"];
            timeout?: components["schemas"]["Duration"] | null;
            /** @description Where it runs, if not in the template's. */
            workdir?: string | null;
            /** @description Variables over the sandbox's. */
            env?: {
                [key: string]: string;
            };
            /** @description As whom, if not the template's user. */
            user?: string | null;
            /** @description What it reads from its standard input. */
            stdin?: string | null;
            pty?: components["schemas"]["PtySize"];
            /** @description The sandbox stays awake until it ends */
            keep_awake?: boolean;
        };
        /**
         * @description A committed state.
         * @enum {string}
         */
        Status: "creating" | "running" | "suspended" | "failed" | "destroyed";
        /** @description What it takes on disk. */
        Storage: {
            /**
             * Format: int64
             * @description Its own disk.
             */
            disk_bytes: number;
            /**
             * Format: int64
             * @description Its checkpoint.
             */
            checkpoint_bytes: number;
            /**
             * Format: int64
             * @description What it shares with others.
             */
            shared_bytes: number;
        };
        /** @description `POST …/suspend`. */
        SuspendRequest: {
            /**
             * @description Keep memory and processes; yes, if absent.
             * @default null
             */
            memory?: boolean | null;
        };
        /** @description A template. */
        Template: {
            /** @description Its id. */
            id: components["schemas"]["TemplateId"];
            /** @description Its name. */
            name: string;
            /** @description What else it answers to: `name:tag`. */
            tags: string[];
            /** @description What it is for. */
            description: string;
            /** @description How far it is. */
            status: components["schemas"]["TemplateStatus"];
            build_error: components["schemas"]["BuildError"] | null;
            /** @description Where it comes from. */
            source: components["schemas"]["TemplateSource"];
            /** @description Commands run as this user. */
            user: string;
            /** @description And here. */
            workdir: string;
            /** @description Names of its variables. */
            env_keys: string[];
            /** @description Size of a sandbox that names none. */
            default_size: string;
            /** @description Egress of a sandbox that names none. */
            egress: components["schemas"]["Egress"];
            /**
             * Format: int32
             * @description Disk of a sandbox that names none, in MiB; null is the daemon's default.
             */
            disk_mb: number | null;
            /** @description What a sandbox may ask of its disk. */
            io: components["schemas"]["IoLimits"];
            entry: components["schemas"]["Entry"] | null;
            /** @description Runtime of a sandbox that names none; null is the daemon's default. */
            runtime: string | null;
            /** @description Digest of the base that new sandboxes get. */
            base: string | null;
            /**
             * Format: int64
             * @description What it takes on disk.
             */
            disk_bytes: number;
            /** @description When it was asked for. */
            created_at: components["schemas"]["Instant"];
            built_at: components["schemas"]["Instant"] | null;
        };
        /**
         * @description The id of a template; taken with and without its prefix, printed with it
         * @example tpl_k3v7q2m5x6a4b2c7d5ef
         */
        TemplateId: string;
        /** @description `GET /v1/templates`. */
        TemplateList: {
            /** @description By name. */
            templates: components["schemas"]["Template"][];
        };
        /** @description Where a template comes from */
        TemplateSource: {
            /**
             * @description Debian packages
             * @enum {string}
             */
            kind: "debian";
            /** @description The release */
            suite: string;
            packages?: string[];
        } | {
            /**
             * @description An image of a registry, or of an archive that was uploaded
             * @enum {string}
             */
            kind: "image";
            /** @description Its name; of an archive, which of its images is meant */
            reference?: string | null;
            /** @description The archive: of `docker save`, or an OCI layout */
            upload?: string | null;
        } | {
            /**
             * @description A Dockerfile, with what it copies from
             * @enum {string}
             */
            kind: "dockerfile";
            /**
             * @description The id of a upload; taken with and without its prefix, printed with it
             * @example upl_k3v7q2m5x6a4b2c7d5ef
             */
            upload: string;
            /** @description Where the file is in the upload, a tar; `Dockerfile` if absent */
            dockerfile?: string;
            /** @description The stage that is wanted; the last, if null */
            target?: string | null;
            /** @description Values of its `ARG`s */
            build_args?: {
                [key: string]: string;
            };
        } | {
            /**
             * @description A root file system
             * @enum {string}
             */
            kind: "rootfs";
            /**
             * @description The id of a upload; taken with and without its prefix, printed with it
             * @example upl_k3v7q2m5x6a4b2c7d5ef
             */
            upload: string;
        } | {
            /**
             * @description The disk of a sandbox or of a snapshot: one of the two
             * @enum {string}
             */
            kind: "sandbox";
            /** @description The sandbox */
            sandbox_id?: string | null;
            /** @description The snapshot */
            snapshot_id?: string | null;
        };
        /**
         * @description How far a template is
         * @enum {string}
         */
        TemplateStatus: "pending" | "building" | "ready" | "failed" | "deleted";
        /** @description A tenant. */
        Tenant: {
            /** @description Its name. */
            name: string;
            /** @description How much it may have; `null` for no limit. */
            limits: components["schemas"]["TenantLimits"];
            /** @description How much it has. */
            usage: components["schemas"]["TenantUsage"];
            /** @description Since when it exists. */
            created_at: components["schemas"]["Instant"];
        };
        /** @description How much a tenant may have; null for no limit */
        TenantLimits: {
            /** @description Sandboxes that are not destroyed */
            sandboxes: number | null;
            /** @description Memory of those that run, in MiB */
            memory_mb: number | null;
            /** @description Disk of all that are not destroyed, in MiB */
            disk_mb: number | null;
        };
        /** @description `GET /v1/tenants`. */
        TenantList: {
            /** @description By name. */
            tenants: components["schemas"]["Tenant"][];
        };
        /** @description How much a tenant has */
        TenantUsage: {
            /** @description Sandboxes that are not destroyed */
            sandboxes: number;
            /** @description Memory of those that run, in MiB */
            memory_mb: number;
            /** @description Disk of all that are not destroyed, in MiB */
            disk_mb: number;
        };
        /** @description What is under way, and since when. */
        Transition: {
            /** @description What. */
            kind: components["schemas"]["TransitionKind"];
            /** @description Since when. */
            since: components["schemas"]["Instant"];
            /** @description Nobody asked for it: a deadline or idleness did. */
            automatic: boolean;
        };
        /**
         * @description What is under way.
         * @enum {string}
         */
        TransitionKind: "suspending" | "waking" | "destroying" | "snapshotting" | "forking";
        /**
         * @description `POST /v1/uploads`: bytes that a template is to be built from. Those that no template was built from are kept for a
         *     day.
         */
        Upload: {
            /** @description What a template's source calls them. */
            id: components["schemas"]["UploadId"];
            /**
             * Format: int64
             * @description How many there are.
             */
            bytes: number;
            /** @description Their BLAKE3, in hex. */
            digest: string;
        };
        /**
         * @description The id of a upload; taken with and without its prefix, printed with it
         * @example upl_k3v7q2m5x6a4b2c7d5ef
         */
        UploadId: string;
        /** @description `GET /v1/df`. */
        Usage: {
            /** @description Kind by kind. */
            kinds: components["schemas"]["Space"][];
            /**
             * Format: int64
             * @description Free on the file system of the data directory.
             */
            free_bytes: number;
            /**
             * Format: int64
             * @description Its size.
             */
            total_bytes: number;
        };
        /** @description The answer to `PUT …/files/{path}`. */
        WrittenFile: {
            /** @description Where it is. */
            path: string;
            /** @description Its last name. */
            name: string;
            /** @description A file. */
            type: components["schemas"]["FileType"];
            /**
             * Format: int64
             * @description In bytes.
             */
            size: number;
            modified: components["schemas"]["Instant"] | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
