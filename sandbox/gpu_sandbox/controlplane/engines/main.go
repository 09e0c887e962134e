// engines is one binary that holds the controllers of workloads that are made of several pods. The first argument
// says which one to be:
//
//	engines jobset|trainer --kubeconfig FILE --webhook-port PORT --cert-dir FOLDER
//
// Each is what its project's own main makes of it without a configuration file, but for what reaches beyond
// loopback: it serves its webhooks on loopback alone, with a certificate that it is given, and no metrics and no
// probes. It elects no leader, as it is the only one.
//
// With CONTROLPLANE_PARENT_PID in the environment it dies with the thread that started it, however that one dies.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"syscall"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	trainercontroller "github.com/kubeflow/trainer/v2/pkg/controller"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime/core"
	trainerwebhooks "github.com/kubeflow/trainer/v2/pkg/webhooks"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetcontrollers "sigs.k8s.io/jobset/pkg/controllers"
	jobsetwebhooks "sigs.k8s.io/jobset/pkg/webhooks"
	schedulerplugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
)

// An engine adds its types to the scheme, then its controllers and webhooks to the manager.
type engine struct {
	types []func(*runtime.Scheme) error
	setUp func(context.Context, ctrl.Manager) error
}

var engines = map[string]engine{
	"jobset": {
		types: []func(*runtime.Scheme) error{jobset.AddToScheme},
		setUp: setUpJobSet,
	},
	"trainer": {
		types: []func(*runtime.Scheme) error{
			trainerconfig.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, schedulerplugins.AddToScheme, volcano.AddToScheme,
		},
		setUp: setUpTrainer,
	},
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	chosen, known := engines[os.Args[1]]
	if !known {
		usage()
	}
	if parent := os.Getenv("CONTROLPLANE_PARENT_PID"); parent != "" {
		dieWith(parent)
	}
	if err := run(chosen, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen engine, arguments []string) error {
	flags := flag.NewFlagSet("engines", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	port := flags.Int("webhook-port", 0, "where on loopback webhooks are served")
	certDir := flags.String("cert-dir", "", "with tls.crt and tls.key of the webhooks")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	ctrl.SetLogger(zap.New())
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 500
	types := runtime.NewScheme()
	for _, add := range append(chosen.types, scheme.AddToScheme) {
		if err := add(types); err != nil {
			return err
		}
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 types,
		Metrics:                metrics.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certDir}),
	})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := chosen.setUp(ctx, manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func setUpJobSet(ctx context.Context, manager ctrl.Manager) error {
	if err := jobsetcontrollers.SetupJobSetIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	if err := jobsetcontrollers.SetupPodIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	jobsets := jobsetcontrollers.NewJobSetReconciler(manager.GetClient(), manager.GetScheme(), manager.GetEventRecorder("jobset"))
	if err := jobsets.SetupWithManager(manager); err != nil {
		return err
	}
	pods := jobsetcontrollers.NewPodReconciler(manager.GetClient(), manager.GetScheme(), manager.GetEventRecorder("pod"))
	if err := pods.SetupWithManager(manager); err != nil {
		return err
	}
	return jobsetwebhooks.Setup(manager)
}

func setUpTrainer(ctx context.Context, manager ctrl.Manager) error {
	config := trainerconfig.Configuration{}
	manager.GetScheme().Default(&config)
	runtimes, err := trainerruntime.New(ctx, manager.GetClient(), manager.GetFieldIndexer(), &config)
	if err != nil {
		return err
	}
	if kind, err := trainercontroller.SetupControllers(manager, runtimes, controller.Options{}); err != nil {
		return fmt.Errorf("controller of %s: %w", kind, err)
	}
	if kind, err := trainerwebhooks.Setup(manager, runtimes); err != nil {
		return fmt.Errorf("webhook of %s: %w", kind, err)
	}
	return nil
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

func usage() {
	fmt.Fprintln(os.Stderr, "usage: engines jobset|trainer --kubeconfig FILE --webhook-port PORT --cert-dir FOLDER")
	os.Exit(2)
}
