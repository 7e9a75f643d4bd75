package procs_test

import (
	"fmt"
	"os"

	"github.com/execagent/execagent/procs"
)

// A process is started, and then everything that it does arrives in order.
func ExampleStart() {
	p, err := procs.Start(procs.Spec{
		Argv: []string{"sh", "-c", "echo working; exit 3"},
		Dir:  "/",
		Env:  os.Environ(),
		Sink: func(e procs.Event) {
			switch e.Kind {
			case procs.Output:
				fmt.Printf("%d %v %s", e.Seq, e.Stream, e.Data)
			case procs.Exited:
				fmt.Println(e.Seq, "exit code", e.ExitCode)
			case procs.Closed:
				fmt.Println(e.Seq, "closed")
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	p.Begin() // until now it has only been started: nothing was reported
	<-p.Done()
	_ = p.Close()
	// Output:
	// 1 stdout working
	// 2 exit code 3
	// 3 closed
}
