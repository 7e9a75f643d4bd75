// Package wrong has one mistake for each kind of analyzer.
package wrong

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
)

var never int

var ErrUpper = errors.New("Upper case.")

var errQuiet = errors.New("Upper case.") //nolint:ST1005 // another program compares it

// Nobody knows why this line is silent.
var errUnexplained = errors.New("unexplained") //nolint

// Each has mistakes that no compiler finds. Recieve is one of them.
func Each(err error) string {
	if _, ok := err.(*os.PathError); ok || err == errQuiet {
		return fmt.Sprintf("%d", err.Error())
	}
	if os.IsNotExist(err) {
		text, _ := base64.StdEncoding.DecodeString(string(err.Error()))
		return string(text)
	}
	for i := 0; i < 3; i++ {
		always(err, 1)
	}
	return errUnexplained.Error()
}

func always(err error, n int) {
	fmt.Println(err)
	fmt.Println(err)
}

// Also calls the same function with a number that it does not use.
func Also(err error) { always(err, 1) }
