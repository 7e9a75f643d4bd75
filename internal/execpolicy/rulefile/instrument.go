package rulefile

import (
	"go.starlark.net/syntax"
)

// The names of the calls that instrument inserts into a file. A file can neither call nor redefine
// them, because a name with a space is no identifier of the language.
const (
	callBinary = "binary operator"    // (operator, x, y)
	callUpdate = "augmented operator" // (operator, x, y), of x += y
	callAttr   = "attribute of"       // (x, name)
	callKey    = "key of"             // (x) returns x, which is about to be hashed
	callCopied = "copy of"            // (x) returns x, which is about to be copied
)

// maxDepth bounds the nesting of expressions and statements of a file. The parser has a bound too,
// but not for expressions such as a + b + c.
const maxDepth = 2_000

// instrument replaces operations that can make large values or take long by calls of the meter.
// Such a call first weighs the operands and then does the operation. Positions stay unchanged.
func instrument(tree *syntax.File) (err error) {
	in := &instrumenter{file: tree.Path}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			err = e
		}
	}()
	in.statements(tree.Stmts)
	return nil
}

// instrumenter walks through a tree. It panics with an [*Error] if it finds an error.
type instrumenter struct {
	file  string
	depth int
}

func (in *instrumenter) refuse(n syntax.Node, text string) {
	p := syntax.Start(n)
	panic(&Error{in.file, int(p.Line), int(p.Col), text})
}

// enter counts one more level of nesting. The caller must defer leave.
func (in *instrumenter) enter(n syntax.Node) {
	if in.depth++; in.depth > maxDepth {
		panic(&Error{in.file, 1, 1, "excessive nesting"}) // no position, because finding it would need an equally deep walk
	}
	_ = n
}

func (in *instrumenter) leave() { in.depth-- }

func (in *instrumenter) statements(list []syntax.Stmt) {
	for _, s := range list {
		in.statement(s)
	}
}

func (in *instrumenter) statement(s syntax.Stmt) {
	in.enter(s)
	defer in.leave()
	switch s := s.(type) {
	case *syntax.AssignStmt:
		s.RHS = in.expression(s.RHS)
		if s.Op != syntax.EQ {
			s.RHS = in.update(s)
			s.Op = syntax.EQ
		}
		in.target(s.LHS)
	case *syntax.DefStmt:
		in.parameters(s.Params)
		in.statements(s.Body)
	case *syntax.ExprStmt:
		s.X = in.expression(s.X)
	case *syntax.ForStmt:
		in.target(s.Vars)
		s.X = in.expression(s.X)
		in.statements(s.Body)
	case *syntax.IfStmt:
		s.Cond = in.expression(s.Cond)
		in.statements(s.True)
		in.statements(s.False)
	case *syntax.ReturnStmt:
		if s.Result != nil {
			s.Result = in.expression(s.Result)
		}
	case *syntax.LoadStmt:
		in.refuse(s, "No imports are available")
	case *syntax.WhileStmt:
		in.refuse(s, "while is not allowed")
	}
}

// update returns the new value of x in x += y. The result contains x twice, so x must be an
// expression that can be evaluated twice.
func (in *instrumenter) update(s *syntax.AssignStmt) syntax.Expr {
	x := s.LHS
	for {
		paren, ok := x.(*syntax.ParenExpr)
		if !ok {
			break
		}
		x = paren.X
	}
	again := in.copyOf(x)
	if index, ok := x.(*syntax.IndexExpr); ok && again == nil {
		if of, key := in.copyOf(index.X), in.copyOf(index.Y); of != nil && key != nil {
			again = &syntax.IndexExpr{X: of, Lbrack: index.Lbrack, Y: key, Rbrack: index.Rbrack}
		}
	}
	if again == nil {
		in.refuse(s, "this place cannot be changed by "+s.Op.String()+": give it a name first")
	}
	operator := s.Op - syntax.PLUS_EQ + syntax.PLUS
	return call(s.OpPos, callUpdate, literal(s.OpPos, operator.String()), again, s.RHS)
}

// copyOf returns a copy of the expression if it is a name or a literal, and nil otherwise.
func (in *instrumenter) copyOf(x syntax.Expr) syntax.Expr {
	switch x := x.(type) {
	case *syntax.Ident:
		return &syntax.Ident{NamePos: x.NamePos, Name: x.Name}
	case *syntax.Literal:
		return x
	}
	return nil
}

// target instruments the left side of an assignment.
func (in *instrumenter) target(x syntax.Expr) {
	in.enter(x)
	defer in.leave()
	switch x := x.(type) {
	case *syntax.ParenExpr:
		in.target(x.X)
	case *syntax.TupleExpr:
		for _, x := range x.List {
			in.target(x)
		}
	case *syntax.ListExpr:
		for _, x := range x.List {
			in.target(x)
		}
	case *syntax.IndexExpr:
		x.X, x.Y = in.expression(x.X), in.key(x.Y)
	case *syntax.DotExpr:
		x.X = in.expression(x.X)
	case *syntax.Ident:
	default:
		in.refuse(x, "nothing can be assigned to this")
	}
}

func (in *instrumenter) parameters(list []syntax.Expr) {
	for _, p := range list {
		if named, ok := p.(*syntax.BinaryExpr); ok {
			named.Y = in.expression(named.Y)
		}
	}
}

// key returns the expression of a key with a call that weighs it, because a key is hashed with all
// values in it.
func (in *instrumenter) key(x syntax.Expr) syntax.Expr {
	if _, ok := x.(*syntax.Literal); ok {
		return x
	}
	at := syntax.Start(x)
	return call(at, callKey, in.expression(x))
}

func (in *instrumenter) expressions(list []syntax.Expr) {
	for i, x := range list {
		list[i] = in.expression(x)
	}
}

// expression returns the instrumented form of x.
func (in *instrumenter) expression(x syntax.Expr) syntax.Expr {
	in.enter(x)
	defer in.leave()
	switch x := x.(type) {
	case *syntax.BinaryExpr:
		x.X, x.Y = in.expression(x.X), in.expression(x.Y)
		if x.Op == syntax.AND || x.Op == syntax.OR {
			return x
		}
		return call(x.OpPos, callBinary, literal(x.OpPos, x.Op.String()), x.X, x.Y)
	case *syntax.CallExpr:
		x.Fn = in.expression(x.Fn)
		for i, arg := range x.Args {
			switch arg := arg.(type) {
			case *syntax.BinaryExpr:
				if arg.Op == syntax.EQ {
					arg.Y = in.expression(arg.Y)
					continue
				}
			case *syntax.UnaryExpr:
				if arg.Op == syntax.STAR || arg.Op == syntax.STARSTAR {
					arg.X = call(arg.OpPos, callCopied, in.expression(arg.X))
					continue
				}
			}
			x.Args[i] = in.expression(arg)
		}
	case *syntax.DotExpr:
		return call(x.Dot, callAttr, in.expression(x.X), literal(x.NamePos, x.Name.Name))
	case *syntax.IndexExpr:
		x.X, x.Y = in.expression(x.X), in.key(x.Y)
	case *syntax.SliceExpr:
		x.X = call(x.Lbrack, callCopied, in.expression(x.X))
		for _, bound := range []*syntax.Expr{&x.Lo, &x.Hi, &x.Step} {
			if *bound != nil {
				*bound = in.expression(*bound)
			}
		}
	case *syntax.Comprehension:
		x.Body = in.expression(x.Body)
		for _, clause := range x.Clauses {
			switch clause := clause.(type) {
			case *syntax.ForClause:
				in.target(clause.Vars)
				clause.X = in.expression(clause.X)
			case *syntax.IfClause:
				clause.Cond = in.expression(clause.Cond)
			}
		}
	case *syntax.CondExpr:
		x.Cond, x.True, x.False = in.expression(x.Cond), in.expression(x.True), in.expression(x.False)
	case *syntax.DictExpr:
		in.expressions(x.List)
	case *syntax.DictEntry:
		x.Key, x.Value = in.key(x.Key), in.expression(x.Value)
	case *syntax.LambdaExpr:
		in.parameters(x.Params)
		x.Body = in.expression(x.Body)
	case *syntax.ListExpr:
		in.expressions(x.List)
	case *syntax.TupleExpr:
		in.expressions(x.List)
	case *syntax.ParenExpr:
		x.X = in.expression(x.X)
	case *syntax.UnaryExpr:
		if x.X != nil {
			x.X = in.expression(x.X)
		}
	}
	return x
}

// call returns a call of the meter.
func call(at syntax.Position, name string, args ...syntax.Expr) *syntax.CallExpr {
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: at, Name: name}, Lparen: at, Args: args, Rparen: at}
}

func literal(at syntax.Position, text string) *syntax.Literal {
	return &syntax.Literal{Token: syntax.STRING, TokenPos: at, Raw: text, Value: text}
}
