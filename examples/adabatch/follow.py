"""Give a running job as many times its first number of workers as its batch has grown."""

import argparse

import melodeon


def main() -> None:
    """Follow until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="the job's id or folder")
    parser.add_argument("--most", type=int, default=4, help="never more workers than this")
    args = parser.parse_args()
    job = melodeon.attach(args.job)
    first: int | None = None
    for status in job.watch(every_s=0.5):
        members = [worker for worker in status["workers"] if worker["phase"] == "member" and not worker["released"]]
        if not members:
            continue
        first = first or len(members)
        wanted = min(first * status["batch_factor"], args.most)
        if len(members) < wanted:
            try:
                print(job.scale(wanted).text)
            except melodeon.MelodeonError as error:
                print(error)


if __name__ == "__main__":
    main()
