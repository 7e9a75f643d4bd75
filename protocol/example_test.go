package protocol_test

import (
	"fmt"

	"github.com/execagent/execagent/protocol"
)

// A server reads a request and answers it.
func Example() {
	m, err := protocol.Decode([]byte(`{"id":7,"method":"process/read","params":{"processId":"p","afterSeq":3}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	var params protocol.ReadParams
	if err := protocol.UnmarshalParams(m.Params, &params); err != nil {
		fmt.Println(err)
		return
	}
	answer, err := protocol.AppendResult(nil, m.ID, protocol.StatusResult{Status: protocol.StatusReady})
	fmt.Println(m.Method, params.ProcessID, *params.AfterSeq)
	fmt.Println(string(answer), err)
	// Output:
	// process/read p 3
	// {"id":7,"result":{"status":"ready"}} <nil>
}
