// controlplane is one binary that holds the components of a real Kubernetes control plane. The
// first argument says which one to be, the rest are that component's own flags:
//
//	controlplane etcd|kube-apiserver|kube-scheduler|kube-controller-manager|version [flags]
//
// One binary instead of four, because they share most of their code: it links once, and is a third of the size.
//
// With CONTROLPLANE_PARENT_PID in the environment the component dies with the thread that started it, however
// that one dies.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	if parent := os.Getenv("CONTROLPLANE_PARENT_PID"); parent != "" {
		dieWith(parent)
	}
	component := os.Args[1]
	os.Args = append([]string{filepath.Join(filepath.Dir(os.Args[0]), component)}, os.Args[2:]...)
	switch component {
	case "etcd":
		// Two segments of 64 MB each are allocated before the first write; a sandbox needs neither.
		wal.SegmentSizeBytes = 4 << 20
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kube-controller-manager":
		run(controllermanager.NewControllerManagerCommand())
	case "version":
		fmt.Println(version.Get().GitVersion)
	default:
		usage()
	}
}

// dieWith asks the kernel for SIGKILL at the parent's death, then looks whether it had died before that.
func dieWith(parent string) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "prctl(PR_SET_PDEATHSIG):", errno)
		os.Exit(1)
	}
	if pid, err := strconv.Atoi(parent); err != nil || os.Getppid() != pid {
		fmt.Fprintf(os.Stderr, "the parent, process %s, is gone (now %d)\n", parent, os.Getppid())
		os.Exit(1)
	}
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-scheduler|kube-controller-manager|version [flags]")
	os.Exit(2)
}
