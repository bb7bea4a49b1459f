// gitops says what GitOps tools make of an object: Flux and kubectl by the rules of kstatus, Argo CD
// by a health script, in the Lua interpreter that it has.
//
//	gitops health.lua < object.json    prints {"kstatus": …, "argo": …}, each with a message
package main

import (
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	verdicts, err := judge(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(verdicts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(script string) (map[string]verdict, error) {
	var object map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&object); err != nil {
		return nil, err
	}
	flux, err := kstatus(object)
	if err != nil {
		return nil, err
	}
	argo, err := health(script, object)
	return map[string]verdict{"kstatus": flux, "argo": argo}, err
}

func kstatus(object map[string]any) (verdict, error) {
	// Numbers as the API machinery has them.
	text, err := json.Marshal(object)
	if err != nil {
		return verdict{}, err
	}
	var parsed unstructured.Unstructured
	if err := parsed.UnmarshalJSON(text); err != nil {
		return verdict{}, err
	}
	result, err := status.Compute(&parsed)
	if err != nil {
		return verdict{}, err
	}
	return verdict{result.Status.String(), result.Message}, nil
}

// With the libraries that Argo CD opens, less those that reach out of the script.
func health(script string, object map[string]any) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoFile(script); err != nil {
		return verdict{}, err
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("%s returns no table", script)
	}
	field := func(name string) string { return lua.LVAsString(answer.RawGetString(name)) }
	return verdict{field("status"), field("message")}, nil
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, one := range value {
			table.RawSetString(key, toLua(state, one))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, one := range value {
			table.Append(toLua(state, one))
		}
		return table
	case string:
		return lua.LString(value)
	case float64:
		return lua.LNumber(value)
	case bool:
		return lua.LBool(value)
	default:
		return lua.LNil
	}
}
