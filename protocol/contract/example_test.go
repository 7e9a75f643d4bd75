package contract_test

import (
	"fmt"

	"github.com/execagent/execagent/protocol/contract"
)

func ExampleLoad() {
	c := contract.Load()
	m := c.Method("process/resize")
	fmt.Println(m.Flag, m.Repeat)
	for _, member := range c.Named(m.Params.Name).Members {
		fmt.Println(member.Name, member.Type.Kind)
	}
	// Output:
	// processResize safe
	// processId string
	// rows integer
	// cols integer
}
