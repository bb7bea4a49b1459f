// Command kube is a Kubernetes control plane, a node agent, a client and a
// store in one binary. It runs the part that it was called as (argv[0]), so a
// directory of symbolic links to it stands in for a Kubernetes release, which
// no package registry carries.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// What the released commands register by import.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// parts maps the name of a part to what runs it; each returns the exit code.
var parts = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args) // leaves the process by itself when it fails
		return 0
	},
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
}

// runKubectl differs from the others in how it reports an error: kubectl's own
// exit codes and messages carry meaning to scripts.
func runKubectl() int {
	command := kubectl.NewDefaultKubectlCommand()
	if err := cli.RunNoErrOutput(command); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := parts[name]
	if !known {
		names := make([]string, 0, len(parts))
		for part := range parts {
			names = append(names, part)
		}
		fmt.Fprintf(os.Stderr, "%s: call this by the name of a part: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}
