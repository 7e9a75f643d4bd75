package main

import (
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol/contract"
)

// schemaFlags say what is printed of the contract.
type schemaFlags struct {
	Format string `default:"schema" enum:"schema,meta,openrpc,markdown,python,typescript" placeholder:"NAME" help:"schema: JSON Schema. meta: table of methods. openrpc: OpenRPC document. markdown: page for readers. python, typescript: types. Default: ${default}."`
}

func (*schemaFlags) Help() string {
	return `Prints the contract of the protocol: every method and every record, with types, bounds, flags and descriptions. It is for those who write a client or a server in another language. What is printed belongs to this version of the program.

schema is a JSON Schema 2020-12 with one definition for each record and type. meta lists the methods with their params, results and flags, and says which requests may be repeated. openrpc is for viewers of OpenRPC. markdown is docs/contract/README.md. python and typescript are modules with the types of all records.

Examples:

    agent schema | jq '."$defs".StartParams'
    agent schema --format meta | jq -r '.clientRequests[].name'
    agent schema --format typescript >wire.ts

Exit codes: 0, 1 when the output cannot be written, 2 for a wrong command line.`
}

// run prints the format. The result is the exit code.
func (f *schemaFlags) run(sys program.System) int {
	if _, err := sys.Stdout.Write(contract.Make(f.Format)); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
