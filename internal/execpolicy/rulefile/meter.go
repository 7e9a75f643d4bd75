package rulefile

import (
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

const (
	// maxWeight bounds the work of the evaluation of one file beyond its steps. It is about the number
	// of bytes that the evaluation may make, copy and compare.
	maxWeight = 16 << 20
	// maxIntBits bounds an integer, in bits.
	maxIntBits = 4096
	// maxIntText bounds the length of a text that is converted to an integer, in bytes, because the
	// time of the conversion grows with the square of the length.
	maxIntText = 2048
	// maxNesting bounds the depth of lists in lists when a list is visited with all its elements.
	maxNesting = 100
	// itemWeight is the weight of a value without its elements.
	itemWeight = 16
)

var (
	errHeavy  = errors.New("the rules take too much memory or time")
	errNested = errors.New("the value is nested too deeply, or contains itself")
	errLong   = errors.New("the integer is too large")
)

// meter bounds the values of one evaluation. The library bounds only steps. But one step can double
// a text, make a list from a range of any length, or compare two values that contain the same list
// a million times. So each such operation first pays for its operands. A value counts each time it
// occurs.
type meter struct {
	left int
}

// pay subtracts n from the rest.
func (m *meter) pay(n int) error {
	if n < 0 || n > m.left {
		m.left = 0
		return errHeavy
	}
	m.left -= n
	return nil
}

// payTimes pays n times the amount each.
func (m *meter) payTimes(n, each int) error {
	if n > 0 && each > m.left/n {
		return m.pay(-1)
	}
	return m.pay(n * each)
}

// weigh pays for values including all their elements.
func (m *meter) weigh(values ...starlark.Value) error {
	for _, v := range values {
		if err := m.value(v, 0); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) value(v starlark.Value, depth int) error {
	if depth > maxNesting {
		return errNested
	}
	if err := m.pay(itemWeight); err != nil {
		return err
	}
	each := func(v starlark.Value) error { return m.value(v, depth+1) }
	switch v := v.(type) {
	case starlark.String:
		return m.pay(len(v))
	case starlark.Bytes:
		return m.pay(len(v))
	case *starlark.List:
		for i := range v.Len() {
			if err := each(v.Index(i)); err != nil {
				return err
			}
		}
	case starlark.Tuple:
		for _, x := range v {
			if err := each(x); err != nil {
				return err
			}
		}
	case *starlark.Dict:
		for _, item := range v.Items() {
			if err := each(item); err != nil {
				return err
			}
		}
	case starlark.Sequence:
		return m.payTimes(v.Len(), itemWeight)
	case starlark.Iterable: // the code points of a text: their number is unknown
		for range starlark.Elements(v) {
			if err := m.pay(itemWeight); err != nil {
				return err
			}
		}
	}
	return nil
}

// shallow pays for a copy of a value that does not copy its elements.
func (m *meter) shallow(v starlark.Value) error {
	switch v := v.(type) {
	case starlark.String:
		return m.pay(itemWeight + len(v))
	case starlark.Bytes:
		return m.pay(itemWeight + len(v))
	case starlark.Sequence:
		if err := m.pay(itemWeight); err != nil {
			return err
		}
		return m.payTimes(v.Len(), 3*itemWeight)
	case starlark.Iterable:
		return m.value(v, 0)
	}
	return m.pay(itemWeight)
}

// names returns the functions of the language that a file may use, and the functions that its
// instrumented form calls.
func (m *meter) names() starlark.StringDict {
	names := starlark.StringDict{
		callBinary: starlark.NewBuiltin(callBinary, m.callBinary),
		callUpdate: starlark.NewBuiltin(callUpdate, m.callUpdate),
		callAttr:   starlark.NewBuiltin(callAttr, m.callAttr),
		callKey: starlark.NewBuiltin(callKey, func(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return args[0], m.weigh(args[0])
		}),
		callCopied: starlark.NewBuiltin(callCopied, func(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return args[0], m.shallow(args[0])
		}),
	}
	for _, name := range []string{"len", "range", "type", "bool", "hasattr", "dir", "chr", "ord"} { // these look at one value without its elements
		names[name] = starlark.Universe[name]
	}
	for name, times := range functions {
		names[name] = m.around(name, func(args starlark.Tuple, kwargs []starlark.Tuple) error {
			_, err := m.arguments(args, kwargs, times)
			return err
		})
	}
	names[textOf] = names["str"]
	names["getattr"] = starlark.NewBuiltin("getattr", func(thread *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		v, err := starlark.Call(thread, starlark.Universe["getattr"], args, kwargs)
		if err != nil {
			return nil, err
		}
		return m.method(v), nil
	})
	return names
}

// functions are the functions of the language that visit all of their arguments. The value is a
// factor: their work is at most this factor times the weight of the arguments.
var functions = map[string]int{
	"abs": 1, "all": 1, "any": 1, "dict": 3, "enumerate": 4, "fail": 4, "float": 1, "hash": 1, "int": 1, "list": 2, "max": 1, "min": 1,
	"repr": 6, "reversed": 2, "sorted": 20, "str": 6, "tuple": 2, "zip": 4,
}

// around returns a function of the language that first pays its price.
func (m *meter) around(name string, price func(starlark.Tuple, []starlark.Tuple) error) *starlark.Builtin {
	function := starlark.Universe[name].(*starlark.Builtin)
	return starlark.NewBuiltin(name, func(thread *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		if err := price(args, kwargs); err != nil {
			return nil, err
		}
		if name == "int" && len(args) > 0 {
			if text, ok := args[0].(starlark.String); ok && len(text) > maxIntText {
				return nil, errLong
			}
		}
		return starlark.Call(thread, function, args, kwargs)
	})
}

// arguments pays times times for all arguments of a call. It returns their weight.
func (m *meter) arguments(args starlark.Tuple, kwargs []starlark.Tuple, times int) (weight int, err error) {
	before := m.left
	if err := m.weigh(args...); err != nil {
		return 0, err
	}
	for _, kw := range kwargs {
		if err := m.weigh(kw[1]); err != nil {
			return 0, err
		}
	}
	weight = before - m.left
	return weight, m.payTimes(weight, times-1)
}

// token returns the operator with this spelling.
func token(spelling string) syntax.Token {
	for t := syntax.PLUS; t <= syntax.NOT_IN; t++ {
		if t.String() == spelling {
			return t
		}
	}
	return syntax.ILLEGAL
}

// callBinary implements x OPERATOR y.
func (m *meter) callBinary(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	return m.binary(string(args[0].(starlark.String)), args[1], args[2])
}

func (m *meter) binary(operator string, x, y starlark.Value) (starlark.Value, error) {
	op := token(operator)
	var err error
	switch op {
	case syntax.PLUS:
		if err = m.shallow(x); err == nil {
			err = m.shallow(y)
		}
	case syntax.STAR:
		err = m.product(x, y)
	case syntax.PERCENT:
		err = m.format(x, y)
	default:
		err = m.weigh(x, y)
	}
	if err != nil {
		return nil, err
	}
	switch op {
	case syntax.EQL, syntax.NEQ, syntax.LT, syntax.GT, syntax.LE, syntax.GE:
		is, err := starlark.Compare(op, x, y)
		return starlark.Bool(is), err
	case syntax.NOT_IN:
		in, err := starlark.Binary(syntax.IN, x, y)
		if err != nil {
			return nil, err
		}
		return !in.(starlark.Bool), nil
	}
	z, err := starlark.Binary(op, x, y)
	if n, ok := z.(starlark.Int); ok && n.BigInt().BitLen() > maxIntBits {
		return nil, errLong
	}
	return z, err
}

// product pays for x * y. The product is a number, or a text or list repeated many times.
func (m *meter) product(x, y starlark.Value) error {
	if _, ok := x.(starlark.Int); ok {
		x, y = y, x
	}
	if err := m.weigh(x); err != nil {
		return err
	}
	n, ok := y.(starlark.Int)
	if _, isInt := x.(starlark.Int); !ok || isInt {
		return nil // binary checks the result
	}
	times, ok := n.Int64()
	switch {
	case !ok && n.Sign() > 0:
		return m.pay(-1)
	case times <= 0:
		return nil
	}
	units := itemWeight
	switch x := x.(type) {
	case starlark.String:
		units += len(x)
	case starlark.Bytes:
		units += len(x)
	case starlark.Sequence:
		units += x.Len() * itemWeight
	}
	if times > int64(m.left) {
		return m.pay(-1)
	}
	return m.payTimes(int(times), units)
}

// format pays for inserting values into a text at any number of places.
func (m *meter) format(text starlark.Value, values ...starlark.Value) error {
	before := m.left
	if err := m.weigh(append(values, text)...); err != nil {
		return err
	}
	places := 1
	if s, ok := text.(starlark.String); ok {
		places += strings.Count(string(s), "%") + strings.Count(string(s), "{")
	}
	return m.payTimes(6*places, before-m.left)
}

// callUpdate implements x OPERATOR= y, and returns the new x. A list or dict is changed in place.
func (m *meter) callUpdate(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	operator, x, y := string(args[0].(starlark.String)), args[1], args[2]
	switch list, ok := x.(*starlark.List); {
	case ok && operator == "+":
		other, ok := y.(starlark.Iterable)
		if !ok {
			break
		}
		if err := m.shallow(y); err != nil {
			return nil, err
		}
		var values []starlark.Value // collected first, because other may be the same list
		for v := range starlark.Elements(other) {
			values = append(values, v)
		}
		for _, v := range values {
			if err := list.Append(v); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	if dict, ok := x.(*starlark.Dict); ok && operator == "|" {
		if other, ok := y.(*starlark.Dict); ok {
			if err := m.weigh(y); err != nil {
				return nil, err
			}
			for _, item := range other.Items() {
				if err := dict.SetKey(item[0], item[1]); err != nil {
					return nil, err
				}
			}
			return dict, nil
		}
	}
	return m.binary(operator, x, y)
}

// callAttr implements x.NAME.
func (m *meter) callAttr(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	x, name := args[0], string(args[1].(starlark.String))
	if x, ok := x.(starlark.HasAttrs); ok {
		if v, err := x.Attr(name); v != nil || err != nil {
			return m.method(v), err
		}
	}
	return nil, fmt.Errorf("%s has no .%s attribute", x.Type(), name)
}

// method returns a method that first pays its price. It returns any other value unchanged.
func (m *meter) method(v starlark.Value) starlark.Value {
	method, ok := v.(*starlark.Builtin)
	if !ok || method.Receiver() == nil {
		return v
	}
	return starlark.NewBuiltin(method.Name(), func(thread *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		if err := m.methodPrice(method, args, kwargs); err != nil {
			return nil, err
		}
		return starlark.Call(thread, method, args, kwargs)
	})
}

func (m *meter) methodPrice(method *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) error {
	receiver, name := method.Receiver(), method.Name()
	switch x := receiver.(type) {
	case starlark.String:
		switch {
		case name == "format":
			values := append([]starlark.Value{}, args...)
			for _, kw := range kwargs {
				values = append(values, kw[1])
			}
			return m.format(x, values...)
		case name == "join" && len(args) == 1:
			before := m.left
			if err := m.weigh(args[0]); err != nil {
				return err
			}
			return m.payTimes(1+(before-m.left)/itemWeight, 1+len(x))
		case name == "replace" && len(args) >= 2:
			if _, err := m.arguments(args, kwargs, 1); err != nil {
				return err
			}
			before, _ := starlark.AsString(args[0])
			after, _ := starlark.AsString(args[1])
			if err := m.payTimes(3, len(x)); err != nil {
				return err
			}
			return m.payTimes(1+strings.Count(string(x), before), len(after))
		}
		if err := m.payTimes(itemWeight, len(x)); err != nil { // the result may be a list of letters
			return err
		}
	case starlark.Bytes:
		return m.payTimes(itemWeight, len(x))
	case *starlark.List:
		switch name {
		case "append", "pop", "clear":
			return m.pay(itemWeight)
		case "insert":
			return m.payTimes(1+x.Len(), itemWeight/4) // the elements are moved, not copied
		case "index", "remove":
			if err := m.weigh(x); err != nil {
				return err
			}
		}
	case *starlark.Dict:
		switch name {
		case "keys", "values", "items":
			return m.shallow(x)
		}
	}
	_, err := m.arguments(args, kwargs, 2)
	return err
}
