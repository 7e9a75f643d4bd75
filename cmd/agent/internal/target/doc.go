// Package target is the agent that a command works on: how the user names it, and how the command
// reaches it.
//
// [Flags] name an agent by its URL, behind a registry, or by a context, and [Flags.Connect] connects
// to it. A [Context] is a name for an agent, or for a registry, in the user's [ContextFile], which
// [ReadContexts] reads and [ChangeContexts] changes:
//
//	current = "prod"
//
//	[contexts.prod]
//	registry = "https://registry.example.com"
//	environment_id = "build-1"
//	transport = "direct"                       # or noise
//	token_command = ["pass", "show", "prod"]   # or token_file, or token
//
//	[contexts.box]
//	url = "ws://127.0.0.1:7000"
//	token_file = "~/box.token"
//
//	[contexts.builder]
//	url = "wss://build.example.com:7000"
//	tls_ca = "ca.pem"      # and tls_server_name
//	tls_cert = "me.pem"
//	tls_key = "me.key"
//
// The same file may set options of commands, in tables that package cli reads.
//
// The commands in the file run as the user, so the file must belong to the user or to root, and
// nobody else may be able to write it. A file with a token must not be readable for others either.
package target
